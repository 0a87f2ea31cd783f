"""The communication streams of one run, and which launch would stand in the way of a more urgent one.

A stream takes one collective at a time and never interrupts it. A launch that nobody needs soon, one moment
before the critical path has its own collective ready, makes the whole step longer::

    compute       |= chain =|===== other =====|......|= chain =|     u waits for v: the chain stalls
    group stream     |======= v =======|==== u ====|

    compute       |= chain =|= other =|= chain =|=== other ===|      v lets u go first
    group stream              |== u ==||======= v =======|

So before v is launched: is there a collective u of its group with a longer path to the end that will be ready
while v is on the stream, and would be late behind it, by more than v would be behind u?
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.scheduler.priority import Priorities
from overlap_sched.scheduler.stream_times import FifoStreams, SharedStreams

_LOOK = 4
"""How many of the next collectives of its group are looked at before a launch."""
_FAR, _FARTHER = 40, 160
"""A collective with more open nodes before it than the first is far from ready; they are counted up to the second, as
it is far then until the difference has run."""


class StreamTimes(Protocol):
    """When collectives are finished: :class:`FifoStreams`, or :class:`SharedStreams` under contention.

    All that happens is told in the order in which it happens, each with the compute stream's clock then.

    Attributes:
        finish_us: Per collective launched, when it was finished, or is expected to be.
    """

    finish_us: dict[int, float]

    def free_us(self, group: str) -> float:
        """When the group's stream is expected to be free."""

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished; later than now unless it is by now."""

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""

    def compute(self, time_us: float, clock_us: float, share: float = 1.0) -> float:
        """The clock after compute that takes so long alone, and such a part of a slowdown (``Contention.shares``)."""

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock once collective v is finished."""

    def end_us(self, clock_us: float) -> float:
        """When the compute stream and all others are done, if nothing more is launched."""


class Streams:
    """When each group's stream is free, and what is still to be launched on it.

    ``delays_more_urgent`` looks at no more than 4 collectives and 40 nodes before each; all else is O(1), under
    contention O(collectives in flight) per collective that completes.

    Attributes:
        contended: Do collectives slow compute, and are there several links?
        least_end_us: The step ends no sooner, by all of a stream and what comes behind it; 0 where collectives do not
            go one by one at their own times.
        looked: Nodes visited by :meth:`delays_more_urgent`: the work done, for tests and benchmarks.
    """

    def __init__(
        self, problem: Problem, priorities: Priorities, has_run: Sequence[bool], times: StreamTimes | None = None
    ) -> None:
        """Nothing launched; ``has_run``: per node id, kept up to date by its owner; ``times``: others than by FIFO."""
        self.looked, self.least_end_us = 0, 0.0
        self._one_by_one = times is None and not problem.contention
        self._nodes, self._before = problem.nodes, problem.predecessors
        self._level_us, self._has_run = priorities.bottom_level_us, has_run
        if times is None:
            times = SharedStreams(problem) if problem.contention else FifoStreams(problem)
        self._times: StreamTimes = times
        self._share_of = problem.contention.share_of
        self._elsewhere = _elsewhere(problem)
        self.contended = any(self._elsewhere.values())
        self._left_us = dict.fromkeys(problem.groups, 0.0)  # per group, the time of what has not been launched
        self._behind_us = dict.fromkeys(problem.groups, math.inf)  # per group, no less comes behind any of it
        for v in problem.collectives:
            group, behind = problem.nodes[v].group or "", [self._level_us[w] for w in problem.waits.get(v, ())]
            self._left_us[group] += problem.nodes[v].time_us
            self._behind_us[group] = min(self._behind_us[group], max(behind, default=0.0))
        # per group, what has not been launched, by latest start; a linked list, so that its front is always near
        self._far_until: dict[NodeId, int] = {}  # per collective that is far from ready: until so many nodes have run
        self._steps = 0
        self._to_launch = {group: OrderedDict.fromkeys(ids) for group, ids in priorities.by_latest_start.items()}

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""
        group = self._nodes[v].group or ""
        self._steps += 1
        self._times.launch(v, clock_us)
        self._left_us[group] -= self._nodes[v].time_us
        del self._to_launch[self._nodes[v].group][v]
        if self._one_by_one:
            end_us = self._times.free_us(group) + self._left_us[group] + self._behind_us[group]
            self.least_end_us = max(self.least_end_us, end_us)

    def start_us(self, v: NodeId, clock_us: float) -> float:
        """When v would start if it were launched now."""
        return max(clock_us, self._times.free_us(self._nodes[v].group or ""))

    def beside_us(self, group: str, clock_us: float) -> float:
        """How much longer a collective that slows compute is in flight on other links than the group's.

        0 where the group's own stream is busy: what is launched on it now starts later.
        """
        if self._times.free_us(group) > clock_us:
            return 0.0
        return max([self._times.free_us(other) - clock_us for other in self._elsewhere[group]], default=0.0)

    def compute(self, v: NodeId, clock_us: float) -> float:
        """The clock after compute node v."""
        self._steps += 1
        node = self._nodes[v]
        return self._times.compute(node.time_us, clock_us, self._share_of(node.flops, node.bytes))

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock after wait v."""
        collective = self._nodes[v].collective
        self._steps += 1
        return clock_us if collective is None else self._times.wait(collective, clock_us)

    def end_us(self, clock_us: float) -> float:
        """When the compute stream and all others are done, if nothing more is launched."""
        return self._times.end_us(clock_us)

    def completed_us(self, wait: int) -> float:
        """When the collective that a wait is for completes; 0 for one launched before this graph.

        Under contention later launches may delay it.
        """
        collective = self._nodes[wait].collective
        return 0.0 if collective is None else self._times.completes_us(collective)

    def delays_more_urgent(self, v: NodeId, clock_us: float, end_us: float, keeps_busy: bool = False) -> bool:
        """Would launching v now delay a more urgent u by more than launching u first would delay v?

        Args:
            v: A collective that could be launched.
            clock_us: Now.
            end_us: When the step is expected to end: a node with a longer path than what is left is late.
            keeps_busy: Does the stream's own work count as such a path? It is delayed while the stream is idle for u.
        """
        start_us = self.start_us(v, clock_us)
        finish_us = start_us + self._nodes[v].time_us
        latest_us = end_us - self._level_us[v]
        stream_us = self._left_us[self._nodes[v].group or ""] if keeps_busy else 0.0
        for u in self._more_urgent(v):
            late_us = finish_us - (end_us - self._level_us[u])
            if late_us <= 0:
                continue
            ready_us = max(start_us, self._ready_us(u, clock_us))
            if ready_us >= finish_us:
                continue
            behind = max(ready_us - (end_us - self._level_us[u]), ready_us + self._nodes[u].time_us - latest_us)
            idle_us, busy_us = ready_us + stream_us - end_us, start_us + stream_us - end_us
            if max(behind, idle_us) < max(start_us - latest_us, late_us, busy_us):
                return True
        return False

    def _more_urgent(self, v: NodeId) -> list[int]:
        """Those of the next few collectives of v's group, by latest start, with a longer path to the end than v's."""
        following = islice(self._to_launch[self._nodes[v].group], _LOOK)
        return [u for u in following if self._level_us[u] > self._level_us[v]]

    def _ready_us(self, v: NodeId, clock_us: float) -> float:
        """When v could be launched if all that it needs ran at once; infinite where that is far.

        Nodes come in the original order within each other's dependencies, so one sweep by id is a longest path.
        """
        nodes, has_run = self._nodes, self._has_run
        if self._far_until.get(v, 0) > self._steps:
            return math.inf
        found, todo = {v}, [v]
        while todo and len(found) <= _FARTHER:
            for u in self._before[todo.pop()]:
                if not has_run[u] and u not in found:
                    found.add(u)
                    todo.append(u)
        if len(found) > _FAR:
            self._far_until[v] = self._steps + len(found) - _FAR
            return math.inf
        self.looked += len(found)
        done: dict[int, float] = {}
        for u in sorted(found):
            node = nodes[u]
            at_us = max([done[w] for w in self._before[u] if w in done], default=clock_us)
            if node.kind is Kind.COLLECTIVE:
                done[u] = at_us
            elif node.kind is Kind.WAIT:
                done[u] = max(at_us, self._completed_us(node.collective, at_us))
            else:
                done[u] = at_us + node.time_us
        return done[v]

    def _completed_us(self, collective: int | None, launched_us: float) -> float:
        """When a collective is finished, or would be if it were launched then."""
        if collective is None:
            return 0.0
        if collective in self._times.finish_us:
            return self._times.finish_us[collective]
        return self.start_us(collective, launched_us) + self._nodes[collective].time_us


def _elsewhere(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Per group those on other links whose collectives slow compute."""
    contention, nodes = problem.contention, problem.nodes
    slow = dict.fromkeys(nodes[v].group or "" for v in problem.collectives if contention.slowdown_of(nodes[v].op) > 1.0)
    link = {group: contention.link_of(group) for group in problem.groups}
    return {group: tuple(other for other in slow if link[other] != link[group]) for group in problem.groups}
