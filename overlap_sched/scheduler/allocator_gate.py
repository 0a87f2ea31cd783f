"""The caching allocator beside a run: what is moved ahead must not make it reserve more than it may.

The completion profile (:mod:`overlap_sched.scheduler.admission`) counts live bytes. Whether they fit into the blocks
that lie free depends on what was allocated and freed before, in which order: so the run replays its allocator as it
goes. A node that would make it grow above the limit waits until a block is free that is large enough, or until it is
the first open node of the reference order, which always may run: the limit is kept where moves can keep it.
"""

from sortedcontainers import SortedList

from overlap_sched.peak_memory.caching_allocator import Block, CachingAllocator
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId
from overlap_sched.scheduler.admission import CompletionProfile


class AllocatorGate:
    """The allocator of one run, with plain segments: what fits into those leaves few holes in any.

    Attributes:
        limit_bytes: What it may reserve.
    """

    def __init__(self, live_ranges: LiveRanges, limit_bytes: int) -> None:
        """Only the inputs are there."""
        self.limit_bytes = limit_bytes
        self._nodes, self._storages = live_ranges.problem.nodes, live_ranges.problem.storages
        self._allocator = CachingAllocator()
        self._users = live_ranges.users
        self._left = [len(users) for users in live_ranges.users]
        self._held: dict[int, Block | None] = {}
        self._waiting: dict[NodeId, int] = {}  # the largest storage of each node that was not admitted
        self._by_size: SortedList[tuple[int, NodeId]] = SortedList()
        for node in self._nodes:
            if node.kind is Kind.INPUT:
                self._allocate(node.alloc)

    def admits(self, v: NodeId) -> bool:
        """Can v run ahead of its place? Else it waits here."""
        sizes = [self._storages[s].bytes for s in self._nodes[v].alloc]
        growth = sum([self._allocator.growth_bytes(size) for size in sizes])
        if growth == 0 or self._allocator.reserved_bytes + growth <= self.limit_bytes:
            return True
        self._waiting[v] = max(sizes)
        self._by_size.add((max(sizes), v))
        return False

    def run(self, v: NodeId, memory: CompletionProfile) -> list[NodeId]:
        """Allocate what v makes, free what dies with it; the nodes that may try again, which the caller adds."""
        node = self._nodes[v]
        if node.kind is not Kind.INPUT:
            self._allocate(node.alloc)
        freed = False
        for s in node.use:
            self._left[s] -= 1
            if self._left[s] == 0 and not self._storages[s].pinned:
                self._allocator.free(self._held.pop(s))
                freed = True
        if node.kind is not Kind.INPUT and node.kind is not Kind.OUTPUT:
            for s in node.alloc:
                if not self._users[s]:
                    self._allocator.free(self._held.pop(s))
                    freed = True
        return self._again(memory, freed) if self._waiting else []

    def _allocate(self, made: tuple[int, ...]) -> None:
        for s in made:
            self._held[s] = self._allocator.allocate(self._storages[s].bytes)

    def _again(self, memory: CompletionProfile, freed: bool) -> list[NodeId]:
        again = []
        if memory.first < len(memory.order) and memory.order[memory.first] in self._waiting:
            again.append(memory.order[memory.first])
        if freed:
            large = self._allocator.largest_free_bytes()
            again += [v for _, v in self._by_size.irange(None, (large, len(self._nodes))) if v not in again]
        for v in again:
            self._by_size.remove((self._waiting.pop(v), v))
        return again
