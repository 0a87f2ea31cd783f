"""The judges' clock where compute and communication slow each other down (:mod:`overlap_sched.problem.contention`).

Processor sharing, exact between events. What runs advances at a constant rate until the next collective is finished or
the compute at hand is; then rates are new::

    compute   |== alone ==|=== beside an all_gather: 1 / slowdown ===|... at a wait ...|
    fsdp                  |==== beside compute: 1 / stretch =========|==== alone ====|
    ep, on fsdp's link                         |===== 1 / 2 and 1 / stretch ======|

Where groups have several lanes, as many of a group are in flight, each at 1 / crowding of its rate when all are in use.

How long an order takes: one compute stream, one communication stream per process group.

In the order given, a compute node advances the clock by its time; a collective starts when the clock has
reached its launch and its group's stream is free, and holds that stream; a wait moves the clock to the finish
of its collective (a collective launched before this graph has finished)::

    compute |   mm 50    | wgrad 30 | dgrad 30 |..10|    the wait for `scatter` stalls for 10 us: exposed
    fsdp    |gather 40 |            |  scatter 40   |

A launch costs the compute stream nothing. Where the problem has contention, the times of what runs at the same time
stretch (:mod:`overlap_sched.judge.replay`).
"""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from overlap_sched.problem import Kind, Problem


class ContendedClock:
    """One compute stream and one stream per process group, as they stand after the calls so far.

    While compute runs, what is in flight is only looked at when it changes: at a launch, a finish or a wait. Time, with
    g lanes of all groups (at most one collective in each) and e collectives that finish during the call::

        launch(v)           O(g)
        compute(time_us)    O(g e + 1)
        wait(v), drain()    O(g e + g)

    Attributes:
        clock_us: The compute stream's clock. start_us, finish_us: of collectives, as far as they are known: behind a
            wait for one, and behind the drain.
    """

    def __init__(self, problem: Problem, times_us: Mapping[int, float] = MappingProxyType({})) -> None:
        """Nothing has been launched; ``times_us``: what collectives take alone, where that is not as predicted."""
        contention, nodes = problem.contention, problem.nodes
        self._alone_us = times_us
        self.clock_us = 0.0
        self.start_us: dict[int, float] = {}
        self.finish_us: dict[int, float] = {}
        self._nodes = nodes
        link = {name: contention.link_of(name) for name in problem.groups}
        by_op = {nodes[v].op: (contention.stretch_of(nodes[v].op), contention.slowdown_of(nodes[v].op))
                 for v in problem.collectives}  # fmt: skip
        # Per collective: its group, its link, what stretches it while compute runs, and how it slows compute.
        self._of = {v: (g := nodes[v].group or "", link[g], *by_op[nodes[v].op]) for v in problem.collectives}
        self._lanes, self._crowded = contention.lanes, contention.crowded
        self._queue: dict[str, deque[int]] = {name: deque() for name in problem.groups}  # launched, not started
        self._in_flight = dict.fromkeys(problem.groups, 0)  # how many are in flight, per group
        self._groups_of: dict[str, list[str]] = {}
        for name in problem.groups:
            self._groups_of.setdefault(link[name], []).append(name)
        self._link_pace = dict.fromkeys(link.values(), 0.0)  # how many groups share it now, crowding included
        self._left_us: dict[int, float] = {}  # of the collectives in flight, what they would still take alone
        # Since when compute has run while nothing in flight changed (its left_us is of then); none: left_us is of now.
        self._since_us: float | None = None
        self._slowed, self._until_us = 1.0, math.inf  # from then on: factor on compute, and time to the next finish

    def copied(self) -> "ContendedClock":
        """The clock as it stands, to go another way."""
        found = copy.copy(self)
        found.start_us, found.finish_us = self.start_us.copy(), self.finish_us.copy()
        found._queue = {name: queue.copy() for name, queue in self._queue.items()}
        found._in_flight, found._link_pace = self._in_flight.copy(), self._link_pace.copy()
        found._left_us = self._left_us.copy()
        return found

    def launch(self, v: int) -> None:
        """Collective v goes on its group's stream."""
        group = self._of[v][0]
        if self._in_flight[group] < self._lanes or self._finish_reached():
            self._catch_up()  # else nothing that is in flight changes: it only waits in the queue
        if self._in_flight[group] < self._lanes:
            self._start(v)
        else:
            self._queue[group].append(v)

    def compute(self, time_us: float, share: float = 1.0) -> None:
        """The compute stream does what takes so long alone, and such a part of a slowdown (``Contention.shares``)."""
        while time_us and self._left_us:
            since_us = self._look_ahead() if self._since_us is None else self._since_us
            finish_us = since_us + self._until_us
            slowed = self._slowed if share == 1.0 else 1.0 + (self._slowed - 1.0) * share
            end_us = self.clock_us + time_us * slowed
            if end_us <= finish_us:
                self.clock_us = end_us
                return
            time_us = max(time_us - (finish_us - self.clock_us) / slowed, 0.0)
            self.clock_us = finish_us
            self._catch_up()
        self.clock_us += time_us

    def wait(self, v: int) -> None:
        """The compute stream stalls until collective v is finished."""
        if v not in self.finish_us:
            self._catch_up()
        while v not in self.finish_us:
            self._stall()

    def drain(self) -> float:
        """Let everything in flight finish; returns when it has."""
        self._catch_up()
        while self._left_us:
            self._stall()
        return self.clock_us

    def _look_ahead(self) -> float:
        """Compute runs from here on; returns when that is."""
        self._slowed = max([self._of[v][3] for v in self._left_us])
        self._until_us = self._next_finish_us(computing=True)
        self._since_us = self.clock_us
        return self.clock_us

    def _finish_reached(self) -> bool:
        """Has compute come to where the next of those in flight is finished?"""
        return self._since_us is not None and self.clock_us >= self._since_us + self._until_us

    def _catch_up(self) -> None:
        """Bring what is in flight to where it is, as compute has run since."""
        if self._since_us is not None:
            self._advance(self._until_us if self._finish_reached() else self.clock_us - self._since_us, computing=True)
            self._since_us = None

    def _stall(self) -> None:
        """Nothing is computed until the next of those in flight is finished."""
        time_us = self._next_finish_us(computing=False)
        self.clock_us += time_us
        self._advance(time_us, computing=False)

    def _start(self, v: int) -> None:
        self.start_us[v] = self.clock_us
        self._left_us[v] = self._alone_us.get(v, self._nodes[v].time_us)
        self._count(v, 1)

    def _count(self, v: int, change: int) -> None:
        """One more or less of v's group is in flight: all of its link go at another pace."""
        group, link, _, _ = self._of[v]
        self._in_flight[group] += change
        if self._lanes == 1:
            self._link_pace[link] += change
        else:
            in_flight = [self._in_flight[name] for name in self._groups_of[link]]
            self._link_pace[link] = sum(1 for count in in_flight if count) * self._crowded(max(in_flight))

    def _pace(self, v: int, computing: bool) -> float:
        """How many times as long as alone collective v takes as things stand."""
        _, link, stretch, _ = self._of[v]
        return self._link_pace[link] * stretch if computing else self._link_pace[link]

    def _next_finish_us(self, computing: bool) -> float:
        """How long until one of those in flight is finished, if none is launched before."""
        return min([left * self._pace(v, computing) for v, left in self._left_us.items()])

    def _advance(self, time_us: float, computing: bool) -> None:
        """Time has gone on, at most to the next finish; what is finished now makes room on its stream."""
        finished = []
        for v, left in self._left_us.items():
            pace = self._pace(v, computing)
            if left * pace <= time_us:
                finished.append(v)
            else:
                self._left_us[v] = left - time_us / pace
        for v in finished:
            self.finish_us[v] = self.clock_us
            del self._left_us[v]
            self._count(v, -1)
        for v in finished:
            queue = self._queue[self._of[v][0]]
            if queue:
                self._start(queue.popleft())


@dataclass(frozen=True)
class Replay:
    """The timeline of one order; the tuples are indexed by node id.

    Attributes:
        step_us: When the compute stream and every communication stream are done.
        exposed_us: Time that the compute stream stalls at waits.
        at_us: The compute stream's clock when it reached the node.
        start_us, finish_us: When the node ran (a collective: on its stream; a wait: reached, and left).
        stall_us: Stall at the node; 0 for all but waits.
        slowed_us: Time that compute takes longer than alone, because of contention.
    """

    step_us: float
    exposed_us: float
    at_us: tuple[float, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    stall_us: tuple[float, ...]
    slowed_us: float = 0.0


def replay(problem: Problem, order: Sequence[int]) -> Replay:
    """Run the order in simulated time. The order must be valid (:func:`overlap_sched.judge.validate.violation`)."""
    if problem.contention:
        return _contended(problem, order)
    n = len(problem.nodes)
    at, start, finish, stall = [0.0] * n, [0.0] * n, [0.0] * n, [0.0] * n
    stream_free: dict[str | None, float] = {}
    clock = exposed = 0.0
    for v in order:
        node = problem.nodes[v]
        at[v] = start[v] = clock
        if node.kind is Kind.COLLECTIVE:
            start[v] = max(clock, stream_free.get(node.group, 0.0))
            finish[v] = stream_free[node.group] = start[v] + node.time_us
        elif node.kind is Kind.WAIT:
            done = 0.0 if node.collective is None else finish[node.collective]
            if done > clock:
                stall[v] = done - clock
                exposed += done - clock
                clock = done
            finish[v] = clock
        else:
            clock += node.time_us
            finish[v] = clock
    step = max([clock, *stream_free.values()])
    return Replay(step, exposed, tuple(at), tuple(start), tuple(finish), tuple(stall))


def _contended(problem: Problem, order: Sequence[int]) -> Replay:
    n = len(problem.nodes)
    at, finish, stall = [0.0] * n, [0.0] * n, [0.0] * n
    clock, exposed, slowed = ContendedClock(problem), 0.0, 0.0
    for v in order:
        node = problem.nodes[v]
        at[v] = clock.clock_us
        if node.kind is Kind.COLLECTIVE:
            clock.launch(v)
        elif node.kind is Kind.WAIT:
            if node.collective is not None:
                clock.wait(node.collective)
            stall[v] = clock.clock_us - at[v]
            exposed += stall[v]
        else:
            clock.compute(node.time_us, problem.contention.share_of(node.flops, node.bytes))
            slowed += max(clock.clock_us - at[v] - node.time_us, 0.0)
        finish[v] = clock.clock_us
    step = clock.drain()
    start = list(at)
    for v in problem.collectives:
        start[v], finish[v] = clock.start_us[v], clock.finish_us[v]
    return Replay(step, exposed, tuple(at), tuple(start), tuple(finish), tuple(stall), slowed)
