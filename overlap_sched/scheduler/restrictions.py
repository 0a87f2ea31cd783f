r"""Orders under further restrictions: a device's memory, groups kept apart, another rank's launch sequence.

**A device** (``Options.memory_limit``). The best order by live bytes may not run on it: another order leaves other
holes between its blocks. Less in flight leaves fewer, so the scheduler runs again within tighter budgets, and the
shortest order that runs is taken::

    bytes  |- - - - - - - - - peak - - - - - - - -
           |   ____________________________          live + part * (peak - live)
           |__/      ________              \____
           |  ______/        \_________________      live in the order that runs start from
           +-------------------------------------> position

Where none does: the original order, if it runs there; else the best, and what it is short.

**Groups apart** (``Options.concurrent_groups``). No collective is launched while one of a group that shares ranks is
in flight; nor does anything run then that communicates itself, or may (``Node.launches``). ::

    as found        gather (a)  reduce (b)  mm  wait (a)  wait (b)
    the launch      gather (a)  mm  wait (a)  reduce (b)  wait (b)      where a has finished before b is waited for
    or the wait     gather (a)  wait (a)  reduce (b)  mm  wait (b)      where b is needed sooner

A wait makes the compute stream wait, and a launch comes behind what the compute stream has reached: so a launch behind
a wait starts when that collective has finished, whatever times turn out to be. Memory does not grow: a launch that
comes later allocates later, and what it takes is live until its wait in either case; a wait that comes sooner frees
sooner.

What is in flight together in the original order may be.

**Another rank's order**, followed on a graph that is not quite the same. Ranks whose graphs differ may not each choose
a launch sequence, but they may all take that of one of them. What it has shown (:class:`Proposal`) is laid over the
graph at hand::

    proposal    mm  gather_1  mm  scatter_0  gather_2          in its own original order, and in its new one
                 |     |       |      |         |              alike: one operator, between the same launches
    here        mm  gather_1  mm pad scatter_0 gather_2        pad, which it has not, goes behind what it needs

Nodes run in the order of their likes, as the rules of this graph and the launch sequence admit. Where that takes more
memory than there is, the order with the lowest peak that keeps the sequence is where runs of the list scheduler start.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise, product

import numpy as np

from overlap_sched.options import Concurrent, replayed_allocator
from overlap_sched.peak_memory.best import best_order, judged, lower_to
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.pins import pin_pairs
from overlap_sched.problem.precedence import Pair, by_key, launched_on, positions
from overlap_sched.problem.sizes import AllocatorSettings, size_bytes
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.runs import FAR_AHEAD, WHILE_STALLED
from overlap_sched.scheduler.task import TUNING, Candidate, Reference, Stages, Task
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.clock import PlainClock, StepTimes
from overlap_sched.simulate.ledger import LiveRanges

BUDGET_POLICIES = (WHILE_STALLED, FAR_AHEAD)
"""Of runs within each; of eight policies the two that end shortest on the graphs of the benchmark."""


@dataclass(frozen=True)
class DeviceLimit:
    """What an order must run in.

    Attributes:
        limit_bytes: Of the device. settings: of its allocator; ``None``: live bytes alone count.
    """

    limit_bytes: int
    settings: AllocatorSettings | None

    @classmethod
    def of(cls, task: Task) -> "DeviceLimit | None":
        """The device that ``Options.memory_limit`` names for a task; ``None``: it names none."""
        limit, settings = task.options.memory_limit, replayed_allocator(task.options)
        if limit is None:
            return None
        percent = isinstance(limit, str) and "%" in limit
        needed = needed_bytes(task.live_ranges, task.problem.original_order, settings) if percent else 0
        return cls(size_bytes(limit, needed) or 0, settings)

    def runs(self, live_ranges: LiveRanges, order: Order) -> bool:
        """Does a valid order run on it?"""
        requests = requests_of(live_ranges, order)
        fits = requests.live_bytes <= self.limit_bytes
        return fits and (self.settings is None or requests.fits(self.limit_bytes, self.settings))

    def short_bytes(self, live_ranges: LiveRanges, order: Order) -> int:
        """How many bytes it lacks for a valid order; 0: the order runs."""
        if self.runs(live_ranges, order):
            return 0
        return needed_bytes(live_ranges, order, self.settings, self.limit_bytes) - self.limit_bytes


def needed_bytes(live_ranges: LiveRanges, order: Order, settings: AllocatorSettings | None, fails_in: int = 0) -> int:
    """The smallest device on which a valid order runs; by live bytes alone without settings."""
    requests = requests_of(live_ranges, order)
    return requests.live_bytes if settings is None else requests.smallest_capacity(settings, fails_in)


def best_that_runs(
    device: DeviceLimit, task: Task, reference: Reference, original: Candidate, best: Candidate
) -> Candidate:
    """Return the shortest order found that runs on a device, at least as short as the original one."""

    def runs(found: Candidate) -> bool:
        return device.runs(task.live_ranges, found.order)

    if runs(best):
        return best
    shortest, work = original if task.may_stay and runs(original) else None, best.work
    live = np.minimum(reference.profile, task.limit)
    for part, policy in product(TUNING.budget_parts, BUDGET_POLICIES) if task.options.effort else ():
        limit = (live + part * (task.limit - live)).astype(np.int64)
        run = list_schedule(reference, limit, policy, task.pairs, (shortest or original).step_us)
        work = work.plus(run.work)
        if run.made is not None and (shortest is None or run.made.beats(shortest)) and runs(run.made):
            shortest = run.made
    return replace(shortest or best, work=work)


Clash = Callable[[NodeId, NodeId], bool]
"""Whether two collectives must not be in flight together."""


class _CannotBeError(Exception):
    """What is in flight cannot be waited for yet."""


def clashes(problem: Problem, concurrent: Concurrent, as_originally: bool = True) -> Clash:
    """Return a test of whether two nodes that launch must not be in flight together.

    Args:
        problem: With the ranks of its groups, where they are known; else they are taken to share all.
        concurrent: See ``Options.concurrent_groups``.
        as_originally: Two that are in flight together in the original order may be.
    """
    on = {v: groups for v, node in enumerate(problem.nodes) if (groups := launched_on(node))}
    names = {name for groups in on.values() for name in groups}
    shared = {(a, b): _shares(problem, a, b, concurrent) for a in names for b in names}
    end = {v: v if problem.nodes[v].launches else problem.ends.get(v, (len(problem.nodes),))[0] for v in on}

    def clash(u: NodeId, v: NodeId) -> bool:
        share = any(shared[a, b] for a in on[u] for b in on[v])
        return share and not (as_originally and u < end[v] and v < end[u])

    return clash


def _shares(problem: Problem, one: str, other: str, concurrent: Concurrent) -> bool:
    a, b = (problem.groups[name].ranks if name in problem.groups else () for name in (one, other))
    return one != other and (concurrent == "one" or not a or not b or len(set(a) & set(b)) > 1)


def on_one_stream(problem: Problem, concurrent: Concurrent) -> Problem:
    """The problem with groups that share ranks, directly or through others, on one stream: its best orders hardly
    change once they are kept apart.
    """
    first = {name: name for name in problem.groups}
    for one in problem.groups:
        for other in problem.groups:
            if _shares(problem, one, other, concurrent) and first[one] != first[other]:
                gone, stays = first[other], first[one]
                first = {name: stays if at == gone else at for name, at in first.items()}
    nodes = (node if node.group is None else node._replace(group=first[node.group]) for node in problem.nodes)
    return replace(problem, nodes=tuple(nodes))


def kept_apart(
    problem: Problem, order: Sequence[NodeId], clash: Clash, defers: bool = True, stalls: float = 0.0
) -> Order | None:
    """The order with launches later and waits sooner, so that no two clash; ``None``: that cannot be had.

    Args:
        problem: What the order is of.
        order: A valid one.
        clash: What must be kept apart.
        defers: Whether launches may pass each other; else waits alone move.
        stalls: For what part of its time a compute node waits for a launch that it would delay. The more the network
            binds, the more is right.
    """
    run = _ApartRun(problem, clash)
    try:
        for v in order:
            if stalls and run.deferred:
                run.stall_before(v, stalls)
            run.come(v, defers)
        for v in run.deferred.copy():
            run.emit(v)
    except _CannotBeError:
        return None
    return tuple(run.order)


class _ApartRun:
    """An order as far as it is made, and simulated time.

    Attributes:
        order: Nodes that have run. deferred: launches whose turn has come, and that wait for others to finish.
    """

    def __init__(self, problem: Problem, clash: Clash) -> None:
        self.order, self.deferred, self._in_flight = list[NodeId](), list[NodeId](), list[NodeId]()
        self._problem, self._clash, self._clock = problem, clash, PlainClock(StepTimes(problem))
        self._done = [False] * len(problem.nodes)

    def come(self, v: NodeId, defers: bool) -> None:
        """It is v's turn; a launch is better later where what it clashes with has not finished, or waits itself."""
        nodes = self._problem.nodes
        if self._done[v]:
            return
        if defers and nodes[v].kind is Kind.COLLECTIVE:
            ahead = any(self._clash(u, v) or nodes[u].group == nodes[v].group for u in self.deferred)
            if ahead or self._finish_us(v) > self._clock.clock_us:
                self.deferred.append(v)
                return
        self.emit(v)
        for u in self.deferred.copy():
            if not self._done[u]:
                if self._finish_us(u) > self._clock.clock_us:
                    break  # what comes behind it stays behind it
                self.emit(u)

    def stall_before(self, v: NodeId, part: float) -> None:
        """Launch what was deferred first, with the waits that takes, if v stalls for less than a part of its time."""
        first = self.deferred[0]
        if self._finish_us(first) - self._clock.clock_us < part * self._problem.compute_us[v]:
            self.emit(first)

    def _finish_us(self, v: NodeId) -> float:
        """When all in flight that v clashes with has finished."""
        return max([self._clock.finish_us[u] for u in self._in_flight if self._clash(u, v)], default=0.0)

    def emit(self, v: NodeId) -> None:
        """Run v, behind what it needs; a launch behind waits for all that it clashes with."""
        problem, node = self._problem, self._problem.nodes[v]
        for u in problem.predecessors[v]:
            if not self._done[u]:
                self.emit(u)
        if self._done[v]:
            return
        if launched_on(node):
            for u in [u for u in self._in_flight if self._clash(u, v)]:
                self._wait_for(u)
        self._clock.run((v,))
        self._in_flight = [u for u in self._in_flight if v not in problem.ends.get(u, ())]
        if node.kind is Kind.COLLECTIVE:
            self._in_flight.append(v)
            if v in self.deferred:
                self.deferred.remove(v)
        self._done[v] = True
        self.order.append(v)

    def _wait_for(self, u: NodeId) -> None:
        """A wait for u, now, with what takes it there."""
        for end in self._problem.ends.get(u, ()):
            needs, open_ = list[NodeId](), [end]
            while open_:
                v = open_.pop()
                if self._done[v] or v in needs:
                    continue
                if launched_on(self._problem.nodes[v]):
                    break
                needs.append(v)
                open_ += self._problem.predecessors[v]
            else:
                self.emit(end)
                return
        raise _CannotBeError


@dataclass(frozen=True)
class Proposal:
    """An order that other ranks may follow.

    Attributes:
        calls: Per node, its kind and operator.
        launches: The nodes that launch, in the original order.
        order: Node ids.
    """

    calls: tuple[str, ...]
    launches: tuple[NodeId, ...]
    order: Order

    @classmethod
    def of(cls, problem: Problem, order: Order) -> "Proposal":
        """Return what a rank shows of an order of its own."""
        calls = tuple(f"{node.kind.value} {node.op}" for node in problem.nodes)
        return cls(calls, tuple(v for v, node in enumerate(problem.nodes) if launched_on(node)), order)

    @property
    def sequence(self) -> tuple[int, ...]:
        """The launches in their new order, each by its place in the original one."""
        position = positions(self.order)
        return tuple(sorted(range(len(self.launches)), key=lambda k: position[self.launches[k]]))


def followed(problem: Problem, proposal: Proposal, pairs: Sequence[Pair] = ()) -> Order | None:
    """A valid order with the launches of a proposal, as near to it as may be; ``None``: there is none.

    Whether it stays within a budget, and how long it takes, is for others to see. ``pairs`` of nodes keep their order.
    """
    mine = Proposal.of(problem, problem.original_order)
    calls, launches = mine.calls, mine.launches
    if [calls[v] for v in launches] != [proposal.calls[v] for v in proposal.launches]:
        return None
    position, key = positions(proposal.order), [-1.0] * len(problem.nodes)
    for here, there in _alike(calls, launches, proposal):
        key[here] = float(position[there])
    for v, before in enumerate(problem.predecessors):
        if key[v] < 0:
            key[v] = max([key[u] for u in before], default=0.0) + 0.5
    return by_key(problem, [*pairwise([launches[k] for k in proposal.sequence]), *pairs], key)


def _alike(calls: Sequence[str], launches: Sequence[NodeId], proposal: Proposal) -> Iterator[tuple[NodeId, NodeId]]:
    """Nodes here, and those that they are like: between the same two launches, in the same order."""
    yield from zip(launches, proposal.launches, strict=True)
    here = pairwise((-1, *launches, len(calls)))
    there = pairwise((-1, *proposal.launches, len(proposal.calls)))
    for (a, b), (c, d) in zip(here, there, strict=True):
        mine, theirs = calls[a + 1 : b], proposal.calls[c + 1 : d]
        if mine == theirs:
            yield from zip(range(a + 1, b), range(c + 1, d), strict=True)
            continue
        for i, j, size in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            yield from ((a + 1 + i + k, c + 1 + j + k) for k in range(size))


def best_like(task: Task, proposal: Proposal, stages: Stages) -> Candidate | None:
    """The best order found with the launches of a proposal, within the budget and ``Options.memory_limit``.

    Args:
        task: What is asked for.
        proposal: Of another rank, or of this one.
        stages: All that is done.

    Returns:
        ``None``: there is no such order, or it would take longer than the original one.
    """
    order = followed(task.problem, proposal, pin_pairs(task.problem, task.options.pins))
    if order is None or task.options.concurrent_groups != "any":
        return None
    task = replace(task, like=order)
    best = _within_budget(task, order, stages)
    if best is None or best.step_us > task.measured(task.problem.original_order).step_us:
        return None
    device = DeviceLimit.of(task)
    return best if device is None or device.runs(task.live_ranges, best.order) else None


def _within_budget(task: Task, order: Order, stages: Stages) -> Candidate | None:
    """The order itself; else that with less in flight where too much is live, and what runs make from there."""
    if task.within_budget(order):
        return replace(task.measured(order), reasons=dict.fromkeys(task.problem.collectives, "reference"))
    for low in _lower(task.problem.renumbered(order, task.pairs), int(task.limit.min())):
        if task.within_budget(start := tuple(order[k] for k in low)):
            return stages.run(task, task.reference(start), task.measured(start))
    return None


def _lower(problem: Problem, limit_bytes: int) -> Iterator[Order]:
    """Orders with the launches of the original one: that with less live where it is too much, then the lowest found."""
    graph = memory_graph_of(problem, "all")
    low, _ = lower_to(graph, judged(graph, graph.rest), limit_bytes, TUNING.follow_steps)
    yield tuple(lead_with_inputs(graph, low.order))
    yield best_order(problem, "all", 1).order
