"""The caching allocator beside a run: what is moved ahead must not make it reserve more than it may.

The completion profile (:mod:`overlap_sched.scheduler.admission`) counts live bytes. Whether they fit into the blocks
that lie free depends on what was allocated and freed before, in which order: so the run replays its allocator as it
goes. A node that would make it grow above the limit waits until a block is free that is large enough, or until it is
the first open node of the reference order, which always may run: the limit is kept where moves can keep it.

With care, a node whose results would land badly (:mod:`overlap_sched.scheduler.landing`) waits, too, even the first
open one: for a number of nodes at most, and never when nothing else can run. What the run does meanwhile is up to its
rules, so that it costs less time than in an order that is finished.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sortedcontainers import SortedList

from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.landing import Landing


class Care(NamedTuple):
    """What waits for a better place to land.

    Attributes:
        most_badness: Of what need not wait. most_nodes: that run meanwhile. kinds: of nodes that wait.
    """

    most_badness: float
    most_nodes: int
    kinds: tuple[Kind, ...]


class AllocatorGate:
    """The allocator of one run, with plain segments: what fits into those leaves few holes in any.

    Attributes:
        limit_bytes: What it may reserve now: it rises when a node has run that makes it grow in the original order.
    """

    def __init__(
        self,
        live_ranges: LiveRanges,
        limit_bytes: int,
        grows: Mapping[NodeId, int],
        reference: Sequence[NodeId] = (),
        care: Care | None = None,
        allocator: CachingAllocator | None = None,
    ) -> None:
        """Only the inputs are there.

        Args:
            live_ranges: Of the problem that is scheduled.
            limit_bytes: What the allocator may reserve from the start.
            grows: Per node, by how much the limit rises as it runs; nodes left out: not at all.
            reference: The order that the run starts from; asked for with care.
            care: Of where results land; none: wherever they do.
            allocator: New; by default one without a limit.
        """
        self.limit_bytes = limit_bytes
        self._grows, self._care = grows, care
        self._nodes, self._storages = live_ranges.problem.nodes, live_ranges.problem.storages
        self._landing = Landing(live_ranges, reference, allocator or CachingAllocator())
        self._beside = self._landing.run
        self._waiting: dict[NodeId, int] = {}  # the largest storage of each node that was not admitted
        self._by_size: SortedList[tuple[int, NodeId]] = SortedList()
        self._ran = self._first = 0
        self._held_back: dict[NodeId, int] = {}  # how many nodes had run when each was
        self._no_more: set[NodeId] = set()

    def admits(self, v: NodeId, ahead: bool = True) -> bool:
        """Can v run now, ahead of its place or as the first open node? Else it waits here."""
        if self._care is not None and v not in self._no_more and self._lands_badly(v, self._care):
            self._held_back[v] = self._ran
            return False
        if not ahead:
            return True
        allocator = self._beside.allocator
        sizes = [self._storages[s].bytes for s in self._nodes[v].alloc]
        growth = sum([allocator.growth_bytes(size) for size in sizes])
        if growth == 0 or allocator.reserved_bytes + growth <= self.limit_bytes + self._grows.get(v, 0):
            return True
        self._waiting[v] = max(sizes)
        self._by_size.add((max(sizes), v))
        return False

    def run(self, v: NodeId, memory: CompletionProfile) -> list[NodeId]:
        """Allocate what v makes, free what dies with it; the nodes that may try again, which the caller adds."""
        freed = self._beside.step(v)
        self._ran, self._first = self._ran + 1, memory.first
        again = self._let_go() if self._held_back else []
        if v in self._grows:
            self.limit_bytes += self._grows[v]
            return again + self._leave(list(self._waiting))
        return again + self._again(memory, freed) if self._waiting else again

    def give_way(self) -> list[NodeId]:
        """Nothing else can run: all that is held back, which is not held back any more; the caller adds it."""
        nodes = list(self._held_back)
        self._no_more.update(nodes)
        self._held_back.clear()
        return nodes

    def _lands_badly(self, v: NodeId, care: Care) -> bool:
        return self._nodes[v].kind in care.kinds and self._landing.badness(v, self._first) > care.most_badness

    def _let_go(self) -> list[NodeId]:
        care = self._care
        assert care is not None
        nodes = [
            v
            for v, since in self._held_back.items()
            if self._ran - since > care.most_nodes or not self._lands_badly(v, care)
        ]
        for v in nodes:
            del self._held_back[v]
        self._no_more.update(nodes)
        return nodes

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
