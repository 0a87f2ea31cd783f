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

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.contention import slowed_factor


class ContendedClock:
    """One compute stream and one stream per process group, from one finish of a collective to the next.

    Attributes:
        clock_us: The compute stream's clock. start_us, finish_us: of collectives that have started, or finished.
    """

    def __init__(self, problem: Problem) -> None:
        """Nothing has been launched."""
        self.clock_us, self.start_us, self.finish_us = 0.0, dict[int, float](), dict[int, float]()
        self._nodes, self._contention = problem.nodes, problem.contention
        self._queue = {name: deque[int]() for name in problem.groups}  # launched, not started
        self._left_us = dict[int, float]()  # of the collectives in flight, what they would still take alone

    def launch(self, v: int) -> None:
        """Collective v goes on its group's stream."""
        group = self._nodes[v].group or ""
        self._queue[group].append(v)
        self._start_next(group)

    def compute(self, time_us: float, share: float) -> None:
        """The compute stream does what takes so long alone, and such a part of a slowdown (``Contention.shares``)."""
        while time_us > 0.0:
            slowed = max([self._contention.slowdown_of(self._nodes[v].op) for v in self._left_us], default=1.0)
            factor, pace = slowed_factor(slowed, share), self._paces(computing=True)
            next_us = min([self._left_us[v] * pace[v] for v in pace], default=time_us * factor)
            self._pass(min(next_us, time_us * factor), pace)
            time_us = time_us - next_us / factor if next_us < time_us * factor else 0.0

    def wait(self, v: int) -> None:
        """The compute stream stalls until collective v is finished."""
        while v not in self.finish_us:
            self._stall()

    def drain(self) -> float:
        """Let everything in flight finish; returns when it has."""
        while self._left_us:
            self._stall()
        return self.clock_us

    def _stall(self) -> None:
        """Nothing is computed until the next of those in flight is finished."""
        pace = self._paces(computing=False)
        self._pass(min(self._left_us[v] * pace[v] for v in pace), pace)

    def _paces(self, computing: bool) -> dict[int, float]:
        """How many times as long as alone each collective in flight takes as things stand."""
        contention, nodes = self._contention, self._nodes
        in_flight = Counter(nodes[v].group or "" for v in self._left_us)
        paces = dict[int, float]()
        for v in self._left_us:
            link = contention.link_of(nodes[v].group)
            counts = [count for group, count in in_flight.items() if contention.link_of(group) == link]
            stretch = contention.stretch_of(nodes[v].op) if computing else 1.0
            paces[v] = len(counts) * contention.crowded(max(counts)) * stretch
        return paces

    def _pass(self, time_us: float, pace: dict[int, float]) -> None:
        """Time has gone on, at most to the next finish; what is finished now makes room on its stream."""
        self.clock_us += time_us
        finished = [v for v, left_us in self._left_us.items() if left_us * pace[v] <= time_us]
        self._left_us = {v: us - time_us / pace[v] for v, us in self._left_us.items() if v not in finished}
        self.finish_us.update(dict.fromkeys(finished, self.clock_us))
        for v in finished:
            self._start_next(self._nodes[v].group or "")

    def _start_next(self, group: str) -> None:
        in_flight = sum(self._nodes[v].group == group for v in self._left_us)
        if self._queue[group] and in_flight < self._contention.lanes:
            v = self._queue[group].popleft()
            self.start_us[v], self._left_us[v] = self.clock_us, self._nodes[v].time_us


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
