"""The caching allocator beside an order that is still being made: one node at a time.

:class:`~overlap_sched.peak_memory.allocator.reserved.Requests` replays whole orders, several times each, and is
faster at that.
"""

from collections.abc import Iterable

from overlap_sched.peak_memory.allocator.caching import Address
from overlap_sched.peak_memory.allocator.kinds import Allocator
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId


class AllocatorRun:
    """An allocator and what it holds, after the nodes that have run.

    Attributes:
        allocator: It. held: Per live storage its block.
    """

    def __init__(self, live_ranges: LiveRanges, allocator: Allocator) -> None:
        """Only the inputs are there; the allocator was new."""
        self.allocator = allocator
        self.held: dict[int, Address] = {}
        self._steps, self._sizes, self._left = live_ranges.steps, live_ranges.sizes, live_ranges.uses_left()
        self._allocate(live_ranges.given)

    def step(self, v: NodeId) -> bool:
        """Run a node: what it makes is allocated, then what dies with it is freed. Was anything freed?

        Raises:
            OutOfDeviceMemoryError: Something does not fit.
        """
        makes, uses, drops = self._steps[v]
        if makes:
            self._allocate(makes)
        left, dead = self._left, list[int]()
        for s in uses:
            left[s] -= 1
            if not left[s]:
                dead.append(s)
        dead += drops
        for s in dead:
            self.allocator.free(self.held.pop(s))
        return bool(dead)

    def _allocate(self, made: Iterable[int]) -> None:
        for s in made:
            self.held[s] = self.allocator.allocate(self._sizes[s])
