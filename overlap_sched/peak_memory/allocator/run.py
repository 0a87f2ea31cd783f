"""The caching allocator beside an order that is still being made: one node at a time.

:class:`~overlap_sched.peak_memory.allocator.reserved.Requests` replays whole orders, several times each, and is
faster at that.
"""

from collections.abc import Iterable

from overlap_sched.peak_memory.allocator.caching import Block, CachingAllocator
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId


class AllocatorRun:
    """An allocator and what it holds, after the nodes that have run.

    Attributes:
        allocator: It. held: Per live storage its block (none where it has no bytes).
        asked_bytes: What was asked for last: what does not fit, where something does not.
    """

    def __init__(self, live_ranges: LiveRanges, allocator: CachingAllocator) -> None:
        """Only the inputs are there."""
        self.allocator = allocator
        self.held: dict[int, Block | None] = {}
        self.asked_bytes = 0
        self._nodes, self._storages = live_ranges.problem.nodes, live_ranges.problem.storages
        self._users, self._left = live_ranges.users, [len(users) for users in live_ranges.users]
        for node in self._nodes:
            if node.kind is Kind.INPUT:
                self._allocate(node.alloc)

    def step(self, v: NodeId) -> bool:
        """Run a node: what it makes is allocated, then what dies with it is freed. Was anything freed?

        Raises:
            OutOfDeviceMemoryError: Something does not fit.
        """
        node, held = self._nodes[v], self.held
        if node.kind is not Kind.INPUT:
            self._allocate(node.alloc)
        dead = []
        for s in node.use:
            self._left[s] -= 1
            if self._left[s] == 0 and not self._storages[s].pinned:
                dead.append(s)
        if node.kind is not Kind.INPUT and node.kind is not Kind.OUTPUT:
            dead += [s for s in node.alloc if not self._users[s]]
        for s in dead:
            self.allocator.free(held.pop(s))
        return bool(dead)

    def _allocate(self, made: Iterable[int]) -> None:
        for s in made:
            self.asked_bytes = self._storages[s].bytes
            self.held[s] = self.allocator.allocate(self.asked_bytes)
