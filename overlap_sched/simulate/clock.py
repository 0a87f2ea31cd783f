"""The fast clock: when the compute stream and every communication stream are done, node by node.

Its rules are those of the judge (:mod:`overlap_sched.judge.replay`), with which it shares no code. The main loop asks a
clock as it goes; :class:`StepTimes` says how long whole orders take, thousands of one problem; and orders that begin
alike are looked at from where they begin to differ (:class:`StepTrail`).

Without contention every stream does its collectives one after the other, at full speed (:class:`PlainClock`). Under
contention (:class:`SharedClock`) each link has a time of its own, *alone time*, that passes at 1 / k while k groups are
on it, and slower still while several collectives of a group are in flight (``Contention.crowding``). A collective that
starts at alone time t and takes d alone is finished at alone time t + d, whoever comes and goes in between::

    clock         0    10   20   30   40   50   60
    fsdp          |========= 40 alone ==========|       started at alone time 0, finished at 40
    ep                 |===== 20 alone ====|            started at alone time 10, finished at 30
    alone time    0    10   15   20   25   30   40

So a launch or a finish touches one link, and all that is kept is right at any time. (Processor sharing by virtual
time: Parekh and Gallager, A generalized processor sharing approach to flow control, 1993.) Collectives that compute
stretches alike (``Contention.stretch``) have an alone time of their own, which passes at another rate while compute
runs. A forecast leaves that out: it cannot know how long compute will run.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from overlap_sched.problem import Kind, Node, NodeId, Problem
from overlap_sched.problem.contention import slowed_factor
from overlap_sched.problem.precedence import alike

CHECKPOINTS = 32
"""Of a trail."""
_LAUNCH, _WAIT = -1.0, -2.0
"""In the place of a time on the compute stream."""


class Trace(NamedTuple):
    """Where an order spends its time: when the compute stream reaches each node, and how long it stalls there."""

    at_us: list[float]
    stall_us: list[float]
    finish_us: dict[NodeId, float]


class StepTimes:
    """The times of one problem, and how long its orders take.

    Attributes:
        compute_us: Per node, time on the compute stream; below zero where it is a launch, or a wait for one.
        collective_us: Of a launch. stream: its number, of streams. waited_for: by a wait, the launch.
        share: Of a slowdown, see :class:`overlap_sched.problem.contention.Contention`.
        streams: Per group, its number.
    """

    def __init__(self, problem: Problem) -> None:
        """Looks at each node once."""
        nodes, contention = problem.nodes, problem.contention
        self.problem = problem
        self.compute_us = [_compute_us(node) for node in nodes]
        self.collective_us = [node.time_us for node in nodes]
        self.streams = {name: k for k, name in enumerate(dict.fromkeys([*problem.groups, ""]))}
        self.stream = [self.streams[node.group or ""] for node in nodes]
        self.waited_for = [node.collective or 0 for node in nodes]
        self.share = [contention.share_of(node.flops, node.bytes) for node in nodes] if contention.shares else None
        self.slowdown = {v: contention.slowdown_of(nodes[v].op) for v in problem.collectives}

    def drawn(self, order: Sequence[NodeId], factors: Iterable[Sequence[float]]) -> list[float]:
        """Return how long a valid order takes at each draw: the factors of 0 or more on the times of all nodes."""
        times, steps_us = copy.copy(self), []
        for draw in factors:
            times.collective_us = [us * by for us, by in zip(self.collective_us, draw, strict=True)]
            times.compute_us = [us * by if us > 0.0 else us for us, by in zip(self.compute_us, draw, strict=True)]
            steps_us.append(times.of(order))
        return steps_us

    def begin(self, forecast: bool = False) -> "PlainClock | SharedClock":
        """Start a clock; of a forecast the times that are expected matter."""
        return SharedClock(self, forecast) if self.problem.contention else PlainClock(self)

    def of(self, order: Sequence[NodeId]) -> float:
        """Return the step of a valid order in microseconds, as the judge says it. O(n)."""
        clock = self.begin()
        clock.run(order)
        return clock.end_us()

    def trace(self, order: Sequence[NodeId]) -> Trace:
        """Return where a valid order spends its time. O(n)."""
        clock, at_us, stall_us = self.begin(), [0.0] * len(order), [0.0] * len(order)
        for v in order:
            at_us[v] = clock.clock_us
            clock.run((v,))
            if self.compute_us[v] == _WAIT:
                stall_us[v] = clock.clock_us - at_us[v]
        clock.end_us()
        return Trace(at_us, stall_us, clock.finish_us)


def _compute_us(node: Node) -> float:
    if node.kind is Kind.COLLECTIVE:
        return _LAUNCH
    if node.kind is Kind.WAIT:
        return 0.0 if node.collective is None else _WAIT
    return node.time_us


class StepTrail:
    """An order's clock every few nodes, made as far as others are like it."""

    def __init__(self, times: StepTimes, order: Sequence[NodeId]) -> None:
        """Nothing has run."""
        self._order, self._clocks, self._every = order, [times.begin()], max(len(order) // CHECKPOINTS, 1)

    def of(self, order: Sequence[NodeId]) -> float:
        """Return the step of another valid order of the same nodes: as :meth:`StepTimes.of`."""
        checkpoint = alike(self._order, order) // self._every
        while len(self._clocks) <= checkpoint:
            clock, at = self._clocks[-1].copied(), (len(self._clocks) - 1) * self._every
            clock.run(self._order[at : at + self._every])
            self._clocks.append(clock)
        clock = self._clocks[checkpoint].copied()
        clock.run(order[checkpoint * self._every :])
        return clock.end_us()


class PlainClock:
    """What runs at the same time does not slow each other down. All is O(1) per node.

    Attributes:
        clock_us: The compute stream's.
        finish_us: Per collective launched, when it was finished, or is expected to be.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times, self._free_us = times, [0.0] * len(times.streams)
        self.finish_us, self.clock_us = dict[NodeId, float](), 0.0

    def free_us(self, group: str) -> float:
        """When the group's stream is expected to be free."""
        return self._free_us[self._times.streams[group]]

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished; later than now unless it is by now."""
        return self.finish_us[v]

    def run(self, nodes: Sequence[NodeId]) -> None:
        """Run nodes, in this order."""
        of, free, finish, clock = self._times, self._free_us, self.finish_us, self.clock_us
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
        self.clock_us = clock

    def end_us(self) -> float:
        """When all streams are done, if nothing else runs."""
        return max([self.clock_us, *self._free_us])

    def copied(self) -> Self:
        """Return the clock as it stands, to go another way."""
        found = copy.copy(self)
        found._free_us, found.finish_us = self._free_us.copy(), self.finish_us.copy()
        return found


@dataclass
class _Flights:
    """Collectives in flight of one link that compute stretches alike, by the alone time at which they are finished.

    Attributes:
        pace: How much time passes in one of alone time while nothing computes; ``stretch`` times that while it does.
        alone_us, clock_us: That time and the clock when last looked at.
    """

    stretch: float
    in_flight: dict[NodeId, float] = field(default_factory=dict)
    pace: float = 1.0
    rate: float = 1.0
    alone_us: float = 0.0
    clock_us: float = 0.0

    def set_pace(self, clock_us: float, pace: float, computing: bool) -> None:
        """Go on at another pace from now on."""
        self.alone_us, self.clock_us = self.alone_us + (clock_us - self.clock_us) / self.rate, clock_us
        self.pace, self.rate = pace, pace * self.stretch if computing else pace

    def next_us(self) -> float:
        """When the first of those in flight is finished, if nothing starts before."""
        if not self.in_flight:
            return math.inf
        return self.clock_us + (min(self.in_flight.values()) - self.alone_us) * self.rate


@dataclass
class _Link:
    """What shares some wires: how many are in flight of each group, and the flights by how they stretch."""

    of_group: dict[str, int] = field(default_factory=dict)
    flights: dict[float, _Flights] = field(default_factory=dict)


class SharedClock:
    """What runs at the same time slows each other down.

    ``finish_us`` of what is in flight is exact unless a group of the same link starts or ends something before then.
    O(collectives in flight) per launch and per collective that is finished, O(1) for compute in between.
    """

    def __init__(self, times: StepTimes, forecast: bool = False) -> None:
        """Nothing has been launched."""
        problem, contention = times.problem, times.problem.contention
        self._times, self._nodes, self._forecast = times, problem.nodes, forecast
        self._lanes, self._crowded = contention.lanes, contention.crowded
        self.finish_us, self.clock_us, self._done = dict[NodeId, float](), 0.0, set[NodeId]()
        links: dict[str, _Link] = {}
        self._link = {name: links.setdefault(contention.link_of(name), _Link()) for name in problem.groups}
        self._links = list(links.values())
        # per group what is launched and not finished, in that order: the first ``lanes`` of it are in flight
        self._queue: dict[str, list[NodeId]] = {name: [] for name in problem.groups}
        self._computing, self._stretches = False, not forecast and any(f != 1.0 for f in contention.stretch.values())
        self._slowed, self._event_us = 1.0, math.inf  # factor on compute, and the next finish, while nothing changes
        self._stale = False

    def free_us(self, group: str) -> float:
        """When the group's stream is expected to be free."""
        queue = self._queue[group]
        if len(queue) < self._lanes:
            return 0.0
        if self._lanes == 1:
            return self.finish_us[queue[-1]]
        return sorted(self.finish_us[v] for v in queue)[-self._lanes]

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished; later than now unless it is by now."""
        if v in self._done:
            return self.finish_us[v]
        return max(self.finish_us[v], math.nextafter(self.clock_us, math.inf))

    def _launch(self, v: NodeId) -> None:
        group = self._nodes[v].group or ""
        queue = self._queue[group]
        pace = next((flights.pace for flights in self._link[group].flights.values()), 1.0)
        self.finish_us[v] = max(self.free_us(group), self.clock_us) + self._times.collective_us[v] * pace
        queue.append(v)
        if len(queue) <= self._lanes:
            self._start(v)

    def _compute(self, v: NodeId) -> None:
        share, time_us = 1.0 if self._times.share is None else self._times.share[v], self._times.compute_us[v]
        self._set_computing(True)
        while True:
            if self._stale:
                self._look_ahead()
            factor = slowed_factor(self._slowed, share)
            if self.clock_us + time_us * factor < self._event_us:
                self.clock_us += time_us * factor
                return
            time_us = max(time_us - (self._event_us - self.clock_us) / factor, 0.0)
            self._finish()

    def run(self, nodes: Sequence[NodeId]) -> None:
        """Run nodes, in this order."""
        compute_us, waited_for = self._times.compute_us, self._times.waited_for
        for v in nodes:
            time_us = compute_us[v]
            if time_us > 0.0:
                self._compute(v)
            elif time_us == _LAUNCH:
                self._launch(v)
            elif time_us == _WAIT:
                self._set_computing(False)
                while waited_for[v] not in self._done:
                    self._finish()

    def end_us(self) -> float:
        """When all streams are done, if nothing else runs."""
        self._set_computing(False)
        while any(flights.in_flight for link in self._links for flights in link.flights.values()):
            self._finish()
        return self.clock_us

    def copied(self) -> Self:
        """Return the clock as it stands, to go another way."""
        found = copy.copy(self)
        found.finish_us, found._done = self.finish_us.copy(), self._done.copy()
        found._queue = {name: queue.copy() for name, queue in self._queue.items()}
        links = {
            id(link): _Link(
                link.of_group.copy(),
                {key: replace(one, in_flight=one.in_flight.copy()) for key, one in link.flights.items()},
            )
            for link in self._links
        }
        found._link = {name: links[id(link)] for name, link in self._link.items()}
        found._links = list(links.values())
        return found

    def _set_computing(self, computing: bool) -> None:
        if self._stretches and computing != self._computing:
            self._computing, self._stale = computing, True
            for link in self._links:
                for flights in link.flights.values():
                    flights.set_pace(self.clock_us, flights.pace, computing)

    def _look_ahead(self) -> None:
        flights = [one for link in self._links for one in link.flights.values()]
        self._slowed = max([self._times.slowdown[v] for one in flights for v in one.in_flight], default=1.0)
        self._event_us = min([one.next_us() for one in flights], default=math.inf)
        self._stale = False

    def _start(self, v: NodeId) -> None:
        node = self._nodes[v]
        link = self._link[node.group or ""]
        stretch = 1.0 if self._forecast else self._times.problem.contention.stretch_of(node.op)
        flights = link.flights.setdefault(stretch, _Flights(stretch))
        self._count(link, node.group or "", 1)
        flights.in_flight[v] = flights.alone_us + self._times.collective_us[v]
        self._expect(link)

    def _count(self, link: _Link, group: str, change: int) -> None:
        """One more or less of a group is in flight: all of its link go at another pace."""
        link.of_group[group] = link.of_group.get(group, 0) + change
        in_flight = [count for count in link.of_group.values() if count]
        pace = len(in_flight) * self._crowded(max(in_flight)) if in_flight else 1.0
        for flights in link.flights.values():
            flights.set_pace(self.clock_us, pace, self._computing and self._stretches)
        self._stale = True

    def _finish(self) -> None:
        """The clock comes to the next finish; what stands behind it on its stream starts."""
        if self._stale:
            self._look_ahead()
        event_us = self._event_us
        self.clock_us = max(event_us, self.clock_us)
        for link in self._links:
            ended: list[NodeId] = []
            for flights in link.flights.values():
                if flights.next_us() <= event_us:
                    first = min(flights.in_flight.values())
                    ended += [v for v, end in flights.in_flight.items() if end == first]
                    flights.alone_us, flights.clock_us = first, self.clock_us  # without rounding
                    flights.in_flight = {v: end for v, end in flights.in_flight.items() if end != first}
            groups = [self._nodes[v].group or "" for v in ended]
            for v, group in zip(ended, groups, strict=True):
                self._queue[group].remove(v)
                self._count(link, group, -1)
                self._done.add(v)
                self.finish_us[v] = self.clock_us
            for group in groups:
                for v in self._queue[group][: self._lanes]:
                    if all(v not in flights.in_flight for flights in link.flights.values()):
                        self._start(v)
            if ended:
                self._expect(link)

    def _expect(self, link: _Link) -> None:
        """Those in flight on a link share it with as many as now, until they are finished."""
        for flights in link.flights.values():
            for v, end in flights.in_flight.items():
                self.finish_us[v] = flights.clock_us + (end - flights.alone_us) * flights.rate


Clock = PlainClock | SharedClock
"""All streams behind some nodes. Where they are alike, :class:`PlainClock` says what a method returns."""
