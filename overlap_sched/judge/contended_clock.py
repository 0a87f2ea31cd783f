"""The judges' clock where compute and communication slow each other down (:mod:`overlap_sched.problem.contention`).

Processor sharing, exact between events. What runs advances at a constant rate until the next collective is finished or
the compute at hand is; then rates are new::

    compute   |== alone ==|=== beside an all_gather: 1 / slowdown ===|... at a wait ...|
    fsdp                  |==== beside compute: 1 / stretch =========|==== alone ====|
    ep, on fsdp's link                         |===== 1 / 2 and 1 / stretch ======|
"""

import math
from collections import deque

from overlap_sched.problem import Problem


class ContendedClock:
    """One compute stream and one stream per process group, as they stand after the calls so far.

    Time, with g groups (at most one collective of each is in flight) and e collectives that finish during the call::

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
        self._queue: dict[str, deque[int]] = {name: deque() for name in problem.groups}
        self._left_us: dict[int, float] = {}  # of the collectives in flight, what they would still take alone
        self._sharing = dict.fromkeys(self._link.values(), 0)  # how many are in flight, per link

    def launch(self, v: int) -> None:
        """Collective v goes on its group's stream."""
        queue = self._queue[self._nodes[v].group or ""]
        queue.append(v)
        if len(queue) == 1:
            self._start(v)

    def compute(self, time_us: float) -> None:
        """The compute stream does what takes so long alone."""
        self._computing = True
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
        self._sharing[self._link_of(v)] += 1

    def _link_of(self, v: int) -> str:
        return self._link[self._nodes[v].group or ""]

    def _pace(self, v: int) -> float:
        """How many times as long as alone collective v takes as things stand."""
        return self._sharing[self._link_of(v)] * (self._stretch[v] if self._computing else 1.0)

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
            self._sharing[self._link_of(v)] -= 1
        for v in finished:
            queue = self._queue[self._nodes[v].group or ""]
            queue.popleft()
            if queue:
                self._start(queue[0])
