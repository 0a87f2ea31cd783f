"""The scheduler's clock: what it is now, and when collectives are expected to be finished.

Without contention every stream does its collectives one after the other, at full speed. The clock under contention
shares nothing with the judges' (:mod:`overlap_sched.judge.replay`), and works another way: each link has a
time of its own, *alone time*, that passes at 1 / k while k groups are on it, and slower still while several collectives
of a group are in flight (``Contention.crowding``). A collective that starts at alone time t and takes d alone is
finished at alone time t + d, whoever comes and goes in between::

    clock         0    10   20   30   40   50   60
    fsdp          |========= 40 alone ==========|       started at alone time 0, finished at 40
    ep                 |===== 20 alone ====|            started at alone time 10, finished at 30
    alone time    0    10   15   20   25   30   40

So a launch or a finish touches one link, and all that is kept is right at any time. (Processor sharing by virtual
time: Parekh and Gallager, A generalized processor sharing approach to flow control, 1993.)

What compute does to collectives (``Contention.stretch``) is left out: alone time would pass at another rate for each of
them. What is found without it is judged with it.

How long the step of an order takes, and nothing else of it: what is asked of thousands of orders of one problem.

The rules are those of the judge (:mod:`overlap_sched.judge.replay`), which keeps all that a report shows. Orders that
begin alike are looked at from where they begin to differ (:class:`StepTrail`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from overlap_sched.judge.replay import ContendedClock
from overlap_sched.problem import Kind, Node, NodeId, Problem
from overlap_sched.problem.contention import beside
from overlap_sched.problem.precedence import alike


class FifoStreams:
    """One stream per process group; see :class:`overlap_sched.scheduler.list_scheduler.StreamTimes`."""

    def __init__(self, problem: Problem) -> None:
        """Nothing has been launched."""
        self.finish_us: dict[int, float] = {}
        self._nodes = problem.nodes
        self._free_us = dict.fromkeys(problem.groups, 0.0)

    def free_us(self, group: str) -> float:
        """When the group's stream is free."""
        return self._free_us[group]

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished."""
        return self.finish_us[v]

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""
        node = self._nodes[v]
        group = node.group or ""
        self.finish_us[v] = self._free_us[group] = max(clock_us, self._free_us[group]) + node.time_us

    def compute(self, time_us: float, clock_us: float, share: float = 1.0) -> float:
        """The clock after compute that takes so long."""
        return clock_us + time_us

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock once collective v is finished."""
        return max(clock_us, self.finish_us[v])

    def end_us(self, clock_us: float) -> float:
        """When all that was launched is finished, and the compute stream is done."""
        return max([clock_us, *self._free_us.values()])


@dataclass
class _Link:
    """Collectives in flight by the alone time at which they are finished, and what that time was when last looked.

    ``pace``: how much time passes in one of alone time. ``of_group``: how many are in flight of each group.
    """

    in_flight: dict[int, float] = field(default_factory=dict)
    of_group: dict[str, int] = field(default_factory=dict)
    pace: float = 1.0
    alone_us: float = 0.0
    clock_us: float = 0.0

    def at(self, clock_us: float) -> float:
        """The alone time then, if nothing starts or is finished before."""
        return self.alone_us + (clock_us - self.clock_us) / self.pace

    def look(self, clock_us: float) -> None:
        self.alone_us, self.clock_us = self.at(clock_us), clock_us

    def next_us(self) -> float:
        """When the first of those in flight is finished, if nothing starts before."""
        if not self.in_flight:
            return math.inf
        return self.clock_us + (min(self.in_flight.values()) - self.alone_us) * self.pace


class SharedStreams:
    """One compute stream, one stream per process group, links that groups share.

    See :class:`overlap_sched.scheduler.list_scheduler.StreamTimes`.

    Attributes:
        finish_us: Of each collective launched, when it was finished, or is expected to be: exact unless a group of the
            same link starts or ends something before then.
    """

    def __init__(self, problem: Problem) -> None:
        """Nothing has been launched."""
        self.finish_us: dict[int, float] = {}
        self._clock_us = 0.0  # the compute stream's, as last told or returned
        contention = problem.contention
        self._nodes = problem.nodes
        self._slowdown = {v: contention.slowdown_of(problem.nodes[v].op) for v in problem.collectives}
        links: dict[str, _Link] = {}
        self._link = {name: links.setdefault(contention.link_of(name), _Link()) for name in problem.groups}
        self._links = tuple(links.values())
        self._lanes, self._crowded = contention.lanes, contention.crowded
        # per group what is launched and not finished, in that order: the first ``lanes`` of it are in flight
        self._queue: dict[str, list[int]] = {name: [] for name in problem.groups}
        self._done: set[int] = set()

    def free_us(self, group: str) -> float:
        """When the group's stream, or a lane of it, is expected to be free."""
        queue = self._queue[group]
        if len(queue) < self._lanes:
            return 0.0
        if self._lanes == 1:
            return self.finish_us[queue[-1]]
        return sorted(self.finish_us[v] for v in queue)[-self._lanes]

    def completes_us(self, v: NodeId) -> float:
        """When collective v was finished, or is expected to be: never by now, as long as it is not."""
        if v in self._done:
            return self.finish_us[v]
        return max(self.finish_us[v], math.nextafter(self._clock_us, math.inf))

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""
        self._clock_us = clock_us
        group = self._nodes[v].group or ""
        queue = self._queue[group]
        self.finish_us[v] = max(self.free_us(group), self._clock_us) + self._nodes[v].time_us * self._link[group].pace
        queue.append(v)
        if len(queue) <= self._lanes:
            self._start(v)

    def compute(self, time_us: float, clock_us: float, share: float = 1.0) -> float:
        """The clock after compute that takes so long alone, and such a part of a slowdown."""
        self._clock_us = clock_us
        while True:
            factor = beside(
                max([self._slowdown[v] for link in self._links for v in link.in_flight], default=1.0), share
            )
            event_us = min(link.next_us() for link in self._links) if self._links else math.inf
            if self._clock_us + time_us * factor < event_us:
                self._clock_us += time_us * factor
                return self._clock_us
            time_us = max(time_us - (event_us - self._clock_us) / factor, 0.0)
            self._finish(event_us)

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock once collective v is finished; the compute stream stalls until then."""
        self._clock_us = clock_us
        while v not in self._done:
            self._finish(min(link.next_us() for link in self._links))
        return self._clock_us

    def end_us(self, clock_us: float) -> float:
        """When all that was launched is finished, and the compute stream is done, if nothing else is launched."""
        self._clock_us = clock_us
        while any(link.in_flight for link in self._links):
            self._finish(min(link.next_us() for link in self._links))
        return self._clock_us

    def _start(self, v: NodeId) -> None:
        group = self._nodes[v].group or ""
        link = self._link[group]
        link.look(self._clock_us)
        link.in_flight[v] = link.alone_us + self._nodes[v].time_us
        self._count(link, group, 1)
        self._expect(link)

    def _count(self, link: _Link, group: str, change: int) -> None:
        """One more or less of a group is in flight."""
        link.of_group[group] = link.of_group.get(group, 0) + change
        flying = [count for count in link.of_group.values() if count]
        link.pace = len(flying) * self._crowded(max(flying)) if flying else 1.0

    def _finish(self, event_us: float) -> None:
        """The clock comes to the next finish; what stands behind it on its stream starts."""
        self._clock_us = max(event_us, self._clock_us)
        for link in self._links:
            if link.next_us() > event_us:
                continue
            first = min(link.in_flight.values())
            ended = [v for v, end in link.in_flight.items() if end == first]
            link.look(self._clock_us)
            link.alone_us = first  # without rounding
            groups = [self._nodes[v].group or "" for v in ended]
            for v, group in zip(ended, groups, strict=True):
                del link.in_flight[v]
                self._queue[group].remove(v)
                self._count(link, group, -1)
                self._done.add(v)
                self.finish_us[v] = self._clock_us
            for group in groups:
                for v in self._queue[group][: self._lanes]:
                    if v not in link.in_flight:
                        self._start(v)
            self._expect(link)

    def _expect(self, link: _Link) -> None:
        """Those in flight on a link share it with as many as now, until they are finished."""
        for v, end in link.in_flight.items():
            self.finish_us[v] = link.clock_us + (end - link.alone_us) * link.pace


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
