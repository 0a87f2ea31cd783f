"""The caching allocator beside a run: what is moved ahead must not make it reserve more than it may.

The completion profile (:mod:`overlap_sched.scheduler.admission`) counts live bytes. Whether they fit into the blocks
that lie free depends on what was allocated and freed before, in which order: so the run replays its allocator as it
goes. A node that would make it grow above the limit waits until a block is free that is large enough, or until it is
the first open node of the reference order, which always may run: the limit is kept where moves can keep it.
"""

from sortedcontainers import SortedList

from overlap_sched.peak_memory.allocator.kinds import allocator
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId
from overlap_sched.scheduler.admission import CompletionProfile


class AllocatorGate:
    """The allocator of one run, with plain segments: what fits into those leaves few holes in any."""

    def __init__(self, live_ranges: LiveRanges, limit_bytes: int) -> None:
        """Only the inputs are there; ``limit_bytes``: what the allocator may reserve."""
        self._limit_bytes = limit_bytes
        self._nodes, self._storages = live_ranges.problem.nodes, live_ranges.problem.storages
        self._beside = AllocatorRun(live_ranges, allocator())
        self._waiting: dict[NodeId, int] = {}  # the largest storage of each node that was not admitted
        self._by_size: SortedList[tuple[int, NodeId]] = SortedList()

    def admits(self, v: NodeId) -> bool:
        """Can v run ahead of its place?"""
        beside = self._beside.allocator
        growth = sum([beside.growth_bytes(self._storages[s].bytes) for s in self._nodes[v].alloc])
        return growth == 0 or beside.reserved_bytes + growth <= self._limit_bytes

    def keep_waiting(self, v: NodeId) -> None:
        """Keep v, which was not admitted, until :meth:`run` gives it back."""
        self._waiting[v] = max(self._storages[s].bytes for s in self._nodes[v].alloc)
        self._by_size.add((self._waiting[v], v))

    def run(self, v: NodeId, memory: CompletionProfile) -> list[NodeId]:
        """Allocate what v makes, free what dies with it; the nodes that may try again, which the caller adds."""
        freed = self._beside.step(v)
        return self._again(memory, freed) if self._waiting else []

    def _again(self, memory: CompletionProfile, freed: bool) -> list[NodeId]:
        again = []
        if memory.first < len(memory.order) and memory.order[memory.first] in self._waiting:
            again.append(memory.order[memory.first])
        if freed:
            large = self._beside.allocator.largest_free_bytes()
            again += [v for _, v in self._by_size.irange(None, (large, len(self._nodes))) if v not in again]
        return self._leave(again)

    def _leave(self, nodes: list[NodeId]) -> list[NodeId]:
        for v in nodes:
            self._by_size.remove((self._waiting.pop(v), v))
        return nodes
