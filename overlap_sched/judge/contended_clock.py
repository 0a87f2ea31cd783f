"""The judges' clock where compute and communication slow each other down (:mod:`overlap_sched.problem.contention`).

Processor sharing, exact between events. What runs advances at a constant rate until the next collective is finished or
the compute at hand is; then rates are new::

    compute   |== alone ==|=== beside an all_gather: 1 / slowdown ===|... at a wait ...|
    fsdp                  |==== beside compute: 1 / stretch =========|==== alone ====|
    ep, on fsdp's link                         |===== 1 / 2 and 1 / stretch ======|

Where groups have several lanes, as many of a group are in flight, each at 1 / crowding of its rate when all are in use.
"""

import math
from collections import deque

from overlap_sched.problem import Problem


class ContendedClock:
    """One compute stream and one stream per process group, as they stand after the calls so far.

    Time, with g lanes of all groups (at most one collective in each) and e collectives that finish during the call::

        launch(v)           O(1)
        compute(time_us)    O(g e + g)
        wait(v), drain()    O(g e + g)

    Attributes:
        clock_us: The compute stream's clock. start_us, finish_us: of collectives, as far as they are known.
    """

    def __init__(self, problem: Problem) -> None:
        """Nothing has been launched."""
        contention = problem.contention
        self.clock_us = 0.0
        self.start_us: dict[int, float] = {}
        self.finish_us: dict[int, float] = {}
        self._nodes = problem.nodes
        self._link = {name: contention.link_of(name) for name in problem.groups}
        self._factor = {v: contention.slowdown_of(problem.nodes[v].op) for v in problem.collectives}
        self._stretch = {v: contention.stretch_of(problem.nodes[v].op) for v in problem.collectives}
        self._computing = False
        self._lanes, self._crowded = contention.lanes, contention.crowded
        self._queue: dict[str, deque[int]] = {name: deque() for name in problem.groups}  # launched, not started
        self._flying = dict.fromkeys(problem.groups, 0)  # how many are in flight, per group
        self._groups_of: dict[str, list[str]] = {}
        for name, link in self._link.items():
            self._groups_of.setdefault(link, []).append(name)
        self._link_pace = dict.fromkeys(self._link.values(), 1.0)
        self._left_us: dict[int, float] = {}  # of the collectives in flight, what they would still take alone

    def launch(self, v: int) -> None:
        """Collective v goes on its group's stream."""
        group = self._nodes[v].group or ""
        if self._flying[group] < self._lanes:
            self._start(v)
        else:
            self._queue[group].append(v)

    def compute(self, time_us: float) -> None:
        """The compute stream does what takes so long alone."""
        self._computing = True
        if not self._left_us or not time_us:  # most steps: nothing that is in flight, or nothing that is computed
            self.clock_us += time_us
            return
        while True:
            factor = max((self._factor[v] for v in self._left_us), default=1.0)
            until_us = self._next_finish_us()
            if time_us * factor <= until_us:
                self._advance(time_us * factor)
                return
            self._advance(until_us)
            time_us -= until_us / factor

    def wait(self, v: int) -> None:
        """The compute stream stalls until collective v is finished."""
        self._computing = False
        while v not in self.finish_us:
            self._advance(self._next_finish_us())

    def drain(self) -> float:
        """Let everything in flight finish; returns when it has."""
        self._computing = False
        while self._left_us:
            self._advance(self._next_finish_us())
        return self.clock_us

    def _start(self, v: int) -> None:
        self.start_us[v] = self.clock_us
        self._left_us[v] = self._nodes[v].time_us
        self._count(v, 1)

    def _count(self, v: int, change: int) -> None:
        """One more or less of v's group is in flight: all of its link go at another pace."""
        group = self._nodes[v].group or ""
        self._flying[group] += change
        flying = [self._flying[name] for name in self._groups_of[self._link[group]]]
        self._link_pace[self._link[group]] = sum(1 for count in flying if count) * self._crowded(max(flying))

    def _pace(self, v: int) -> float:
        """How many times as long as alone collective v takes as things stand."""
        return self._link_pace[self._link[self._nodes[v].group or ""]] * (self._stretch[v] if self._computing else 1.0)

    def _next_finish_us(self) -> float:
        """How long until one of those in flight is finished, if none is launched before."""
        return min((left * self._pace(v) for v, left in self._left_us.items()), default=math.inf)

    def _advance(self, time_us: float) -> None:
        """Time goes on, at most to the next finish; what is finished then makes room on its stream."""
        self.clock_us += time_us
        finished = []
        for v, left in self._left_us.items():
            pace = self._pace(v)
            if left * pace <= time_us:
                finished.append(v)
            else:
                self._left_us[v] = left - time_us / pace
        for v in finished:
            self.finish_us[v] = self.clock_us
            del self._left_us[v]
            self._count(v, -1)
        for v in finished:
            queue = self._queue[self._nodes[v].group or ""]
            if queue:
                self._start(queue.popleft())
