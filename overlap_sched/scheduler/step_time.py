"""How long the step of an order takes, and nothing else of it: what is asked of thousands of orders of one problem.

The rules are those of the judge (:mod:`overlap_sched.judge.replay`), which keeps all that a report shows. Orders that
begin alike are looked at from where they begin to differ (:class:`StepTrail`).
"""

from collections.abc import Sequence
from typing import Protocol, Self

from overlap_sched.judge.contended_clock import ContendedClock
from overlap_sched.problem import Kind, Node, NodeId, Problem
from overlap_sched.problem.precedence import alike

CHECKPOINTS = 32
"""Of a trail."""
_LAUNCH, _WAIT = -1.0, -2.0
"""In the place of a time on the compute stream."""


class Clock(Protocol):
    """All streams behind some nodes."""

    def run(self, nodes: Sequence[NodeId]) -> None:
        """Run nodes, in this order."""

    def end_us(self) -> float:
        """When all streams are done, if nothing else runs. It is of no use after that."""

    def copied(self) -> Self:
        """The same, to go another way."""


class StepTimes:
    """Of the orders of one problem."""

    def __init__(self, problem: Problem) -> None:
        """Looks at each node once."""
        self._problem = problem
        self._nodes = _Nodes(problem)

    def of(self, order: Sequence[NodeId]) -> float:
        """Microseconds of a valid order, as the judge says. O(n)."""
        clock = self.begin()
        clock.run(order)
        return clock.end_us()

    def begin(self) -> Clock:
        """Nothing has run."""
        if self._problem.contention:
            return _Contended(self._nodes, ContendedClock(self._problem))
        return _Alone(self._nodes)


class StepTrail:
    """An order's clock every few nodes, made as far as others are like it."""

    def __init__(self, times: StepTimes, order: Sequence[NodeId]) -> None:
        """Nothing has run."""
        self._order, self._clocks, self._every = order, [times.begin()], max(len(order) // CHECKPOINTS, 1)

    def of(self, order: Sequence[NodeId]) -> float:
        """Microseconds of another valid order of the same nodes: as :meth:`StepTimes.of`."""
        checkpoint = alike(self._order, order) // self._every
        while len(self._clocks) <= checkpoint:
            clock, at = self._clocks[-1].copied(), (len(self._clocks) - 1) * self._every
            clock.run(self._order[at : at + self._every])
            self._clocks.append(clock)
        clock = self._clocks[checkpoint].copied()
        clock.run(order[checkpoint * self._every :])
        return clock.end_us()


class _Nodes:
    """Per node, what a clock asks of it.

    Attributes:
        compute_us: Time on the compute stream; below zero where it is a launch, or a wait for one.
        share: Of a slowdown, see :class:`overlap_sched.problem.contention.Contention`.
        collective_us: Of a launch. stream: its number, of streams. waited_for: by a wait, the launch.
    """

    def __init__(self, problem: Problem) -> None:
        self.compute_us = [_compute_us(node) for node in problem.nodes]
        self.collective_us = [node.time_us for node in problem.nodes]
        groups = {group: at for at, group in enumerate({node.group for node in problem.nodes})}
        self.stream = [groups[node.group] for node in problem.nodes]
        self.waited_for = [node.collective or 0 for node in problem.nodes]
        self.streams = len(groups)
        self.share = [problem.contention.share_of(node.flops, node.bytes) for node in problem.nodes]


def _compute_us(node: Node) -> float:
    if node.kind is Kind.COLLECTIVE:
        return _LAUNCH
    if node.kind is Kind.WAIT:
        return 0.0 if node.collective is None else _WAIT
    return node.time_us


class _Alone:
    """What runs at the same time does not slow each other down."""

    def __init__(self, nodes: _Nodes) -> None:
        self._nodes, self._free = nodes, [0.0] * nodes.streams
        self._finish, self._clock_us = dict[NodeId, float](), 0.0

    def run(self, nodes: Sequence[NodeId]) -> None:
        of, free, finish, clock = self._nodes, self._free, self._finish, self._clock_us
        compute_us, collective_us, streams, waited_for = of.compute_us, of.collective_us, of.stream, of.waited_for
        for v in nodes:
            time_us = compute_us[v]
            if time_us >= 0.0:
                clock += time_us
            elif time_us == _LAUNCH:
                stream = streams[v]
                start = free[stream]
                finish[v] = free[stream] = (clock if clock > start else start) + collective_us[v]
            elif (done := finish[waited_for[v]]) > clock:
                clock = done
        self._clock_us = clock

    def end_us(self) -> float:
        return max([self._clock_us, *self._free])

    def copied(self) -> "_Alone":
        found = _Alone(self._nodes)
        found._free, found._finish, found._clock_us = self._free.copy(), self._finish.copy(), self._clock_us
        return found


class _Contended:
    """By the judges' clock; compute of one share between launches and waits is one piece for it."""

    def __init__(self, nodes: _Nodes, clock: ContendedClock) -> None:
        self._nodes, self._clock, self._computed_us, self._share = nodes, clock, 0.0, 1.0

    def run(self, nodes: Sequence[NodeId]) -> None:
        compute_us, clock, computed_us, share = self._nodes.compute_us, self._clock, self._computed_us, self._share
        shares = self._nodes.share
        for v in nodes:
            time_us = compute_us[v]
            if time_us >= 0.0 and (shares[v] == share or not time_us):
                computed_us += time_us
                continue
            if computed_us:
                clock.compute(computed_us, share)
                computed_us = 0.0
            if time_us >= 0.0:
                computed_us, share = time_us, shares[v]
                continue
            if time_us == _LAUNCH:
                clock.launch(v)
            else:
                clock.wait(self._nodes.waited_for[v])
        self._computed_us, self._share = computed_us, share

    def end_us(self) -> float:
        self._clock.compute(self._computed_us, self._share)
        return self._clock.drain()

    def copied(self) -> "_Contended":
        found = _Contended(self._nodes, self._clock.copied())
        found._computed_us, found._share = self._computed_us, self._share
        return found
