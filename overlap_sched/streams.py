"""The communication streams of one run, and which launch would stand in the way of a more urgent one.

A stream takes one collective at a time and never interrupts it. A launch that nobody needs soon, one moment
before the critical path has its own collective ready, makes the whole step longer::

    compute       |= chain =|===== other =====|......|= chain =|     u waits for v: the chain stands still
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

from overlap_sched.fluid import FluidStreams
from overlap_sched.problem import Kind
from overlap_sched.reference import Reference

_LOOK = 4
"""How many of the next collectives of its group are looked at before a launch."""
_FAR = 40
"""A collective with more than so many open nodes before it is far from ready."""


class Streams:
    """When each group's stream is free.

    Attributes:
        finish_us: Per collective launched, when it is finished. free_us: per group, when its stream is.
        looked: Nodes visited by :meth:`in_the_way`: the work done, for tests and benchmarks.
    """

    def __init__(self, reference: Reference, has_run: Sequence[bool]) -> None:
        """Nothing launched; ``has_run``: per node id, kept up to date by its owner."""
        self.finish_us: dict[int, float] = {}
        self.free_us: dict[str | None, float] = {}
        self.looked = 0
        self._nodes, self._before = reference.problem.nodes, reference.problem.predecessors
        self._tail_us, self._has_run = reference.keys.tail_us, has_run
        problem = reference.problem
        self._fluid = FluidStreams(problem) if problem.contention else None
        if self._fluid is not None:
            self.finish_us = self._fluid.finish_us
        # per group, what has not been launched, by latest start; a linked list, so that its front is always near
        self._coming = {group: OrderedDict.fromkeys(ids) for group, ids in reference.coming.items()}

    def launch(self, v: int, clock_us: float) -> None:
        """Collective v is launched now."""
        node = self._nodes[v]
        if self._fluid is None:
            self.finish_us[v] = self.free_us[node.group] = self.start_us(v, clock_us) + node.time_us
        else:
            self._fluid.launch(v)
        del self._coming[node.group][v]

    def start_us(self, v: int, clock_us: float) -> float:
        """When v would start if it were launched now."""
        group = self._nodes[v].group
        return max(clock_us, self._fluid.free_us(group or "") if self._fluid else self.free_us.get(group, 0.0))

    def compute(self, time_us: float, clock_us: float) -> float:
        """The clock after compute that takes so long alone."""
        if self._fluid is None:
            return clock_us + time_us
        self._fluid.compute(time_us)
        return self._fluid.clock_us

    def wait(self, v: int, clock_us: float) -> float:
        """The clock after wait v."""
        collective = self._nodes[v].collective
        if self._fluid is None or collective is None:
            return max(clock_us, self.finished_us(v))
        self._fluid.wait(collective)
        return self._fluid.clock_us

    def end_us(self, clock_us: float) -> float:
        """When the compute stream and all others are done, if nothing more is launched."""
        return max([clock_us, *self.free_us.values()]) if self._fluid is None else self._fluid.end_us()

    def finished_us(self, wait: int) -> float:
        """When the collective that a wait is for is finished; 0 for one launched before this graph.

        Under contention later launches may put it off: one that is not finished is never said to be by now.
        """
        collective = self._nodes[wait].collective
        if collective is None:
            return 0.0
        if self._fluid is None or self._fluid.finished(collective):
            return self.finish_us[collective]
        return max(self.finish_us[collective], math.nextafter(self._fluid.clock_us, math.inf))

    def in_the_way(self, v: int, clock_us: float, end_us: float) -> bool:
        """Would v, launched now, hold up a more urgent collective for longer than it would have to wait for that one?

        Args:
            v: A collective that could be launched.
            clock_us: Now.
            end_us: When the step is expected to end: a node with a longer path than what is left is late.
        """
        start_us = self.start_us(v, clock_us)
        finish_us = start_us + self._nodes[v].time_us
        latest_us = end_us - self._tail_us[v]
        for u in self._more_urgent(v):
            late_us = finish_us - (end_us - self._tail_us[u])
            if late_us <= 0:
                continue
            ready_us = max(start_us, self._ready_us(u, clock_us))
            if ready_us >= finish_us:
                continue
            behind = max(ready_us - (end_us - self._tail_us[u]), ready_us + self._nodes[u].time_us - latest_us)
            if behind < max(start_us - latest_us, late_us):
                return True
        return False

    def _more_urgent(self, v: int) -> list[int]:
        """Those of the next few collectives of v's group, by latest start, with a longer path to the end than v's."""
        following = islice(self._coming[self._nodes[v].group], _LOOK)
        return [u for u in following if self._tail_us[u] > self._tail_us[v]]

    def _ready_us(self, v: int, clock_us: float) -> float:
        """When v could be launched if all that it needs ran at once; infinite where that is far.

        Nodes come in the original order within each other's dependencies, so one sweep by id is a longest path.
        """
        nodes, has_run = self._nodes, self._has_run
        found, todo = {v}, [v]
        while todo:
            for u in self._before[todo.pop()]:
                if not has_run[u] and u not in found:
                    found.add(u)
                    todo.append(u)
            if len(found) > _FAR:
                return float("inf")
        self.looked += len(found)
        done: dict[int, float] = {}
        for u in sorted(found):
            node = nodes[u]
            at_us = max([done[w] for w in self._before[u] if w in done], default=clock_us)
            if node.kind is Kind.COLLECTIVE:
                done[u] = at_us
            elif node.kind is Kind.WAIT:
                done[u] = max(at_us, self._lands_us(node.collective, at_us))
            else:
                done[u] = at_us + node.time_us
        return done[v]

    def _lands_us(self, collective: int | None, launched_us: float) -> float:
        """When a collective is finished, or would be if it were launched then."""
        if collective is None:
            return 0.0
        if collective in self.finish_us:
            return self.finish_us[collective]
        return self.start_us(collective, launched_us) + self._nodes[collective].time_us
