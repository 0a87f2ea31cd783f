"""Three stages that improve a finished order: shift, relink, fill stalls.

**Shift**: launches sooner, waits later: the same order, but every collective gets as much time as memory allows.

A schedule is made for predicted times: it waits for a collective the moment it should be finished. When that takes a
little longer than predicted, all that follows stalls. Two moves cure it at no cost in time, whatever the times
turn out to be:

``wait later``
    A wait (and what takes no time behind it: a view) moves to just before its first user. What it moves past starts
    no later without it; its user starts no later, since it waited as long before.
``launch sooner``
    A launch moves to just behind what it needs and the launch before it on its group's stream. Its stream gets
    everything no later.

(Where collectives slow compute down, :mod:`overlap_sched.problem.contention`, neither is certain: compare the steps.)

Both cost memory in between: the wait holds the collective's input, the launch its output. So each goes as far as the
budget allows. Memory is exact: a move changes it only between its two places.

**Relink**: orders between the reference and the best one: what a run moves far, moved part of the way.

A run is greedy. Where the network and memory bind at once, what it brings forward early (a gather, the compute that a
launch waits for) takes room from launches that would have been worth more. Part of the way there may be enough. A node
of an order in between stands, by its positions in both, that many percent from the one to the other::

    reference   a b c d e f         position of f: 6
    best        f a b c d e                        1
    60 %        a b f c d e                        3

What comes before something in both orders does so in between, too, as each position is a weighted mean of two: an order
in between is always valid. Whether memory admits it must be looked up. The shortest has its launches and waits shifted
as far as memory goes; runs start from there; and where that gains enough, the
best of all is the next one that orders lie in between to. (Path relinking: Glover, Laguna, Martí, *Fundamentals of
scatter search and path relinking*, 2000.)

**Fill stalls**: where compute stalls, independent compute goes between the launch that it waits for and the wait, or
that launch skips the queue. ::

    before    |= wgrad =|== chain ==|u . . . .|== needs u ==|       compute stalls until u has completed
    after     |== chain ==|u= wgrad =|== needs u ==|                what u does not need hides it

A run of the list scheduler decides node by node: what stands in front in the order given runs first, and that the
launch comes late for it shows only at the wait. So behind each such launch goes as much compute as hides it, the last
in front of it first, each with all in front of the launch that needs it. Or compute from behind the wait goes in front
of it, the next first, each with all behind the wait that it needs.

Where what is waited for was launched in time but queues on its stream, it goes in front of what is before it there, or
that goes behind it: a long reduce_scatter, say, that nobody waits for. ::

    stream    |== scatter, nobody waits ==|= gather =|          stream    |= gather =|== scatter ==|
    compute   |== ... ==|. . . . . . . . . . . . . . |== user   compute   |== ... ==||== user

A move stays where memory admits it and the step becomes shorter.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Order
from overlap_sched.problem.precedence import Pair, launch_pairs, moving_with, neighbours, positions, with_sooner
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.runs import FAR_AHEAD, IN_ORDER, count_rounds
from overlap_sched.scheduler.task import SAME_STEP, TUNING, Candidate, Reason, Reference, Task
from overlap_sched.simulate.clock import StepTrail
from overlap_sched.simulate.ledger import LiveRanges, MovableOrder


def shift_best(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: what runs have made, shifted; any other order is as good as it gets."""
    return shift(task, best, best.order, task.limit_after(best)) if best.reasons else best


def shift(task: Task, best: Candidate, order: Order, limit: npt.NDArray[np.int64]) -> Candidate:
    """The candidate with its nodes in a valid order, shifted within a limit in bytes where that is no longer."""
    moved = task.remeasured(best, shifted(task.live_ranges, order, limit, task.pairs))
    as_it_was = task.remeasured(best, order) if task.problem.contention else moved
    return as_it_was if as_it_was.beats(moved) else moved


def shifted(
    live_ranges: LiveRanges,
    order: Sequence[NodeId],
    limit: npt.NDArray[np.int64],
    pairs: Sequence[Pair] = (),
) -> Order:
    """The order with waits later and launches sooner, within the budget; without contention never a longer step.

    Args:
        live_ranges: Of the problem that the order is of.
        order: A valid order within the budget.
        limit: Budget in bytes, a scalar or one value per position.
        pairs: Extra pairs (before, after) that the order keeps and must go on to keep.
    """
    problem, nodes = live_ranges.problem, live_ranges.problem.nodes
    before, after = neighbours(problem, (*pairs, *launch_pairs(problem, order, "group")))
    line = MovableOrder(live_ranges, order, limit)

    def move_later(moving: Iterable[NodeId]) -> None:
        """Each of these to just before the first of what comes after it, as far as memory allows."""
        for v in moving:
            first = min((int(line.position[w]) for w in after[v]), default=len(order))
            line.move_later(v, min(first - 1, int(line.position[v]) + TUNING.shift_positions))

    still = [node.kind is Kind.WAIT or (node.kind is Kind.COMPUTE and node.time_us == 0) for node in nodes]
    move_later(v for v in reversed(order) if still[v])
    prepares = [False] * len(order)  # a launch, or what takes no time and is there for a launch alone
    for v in reversed(line.order.tolist()):
        launch = nodes[v].kind is Kind.COLLECTIVE
        prepares[v] = launch or (still[v] and bool(after[v]) and all(prepares[w] for w in after[v]))
    sooner = [one and node.kind is not Kind.WAIT for one, node in zip(prepares, nodes, strict=True)]
    # inputs that lead the order go on to lead it: in a graph they are its signature
    front = len(list(takewhile(lambda v: nodes[v].kind is Kind.INPUT, line.order)))
    for v in line.order.tolist():
        if sooner[v]:
            needed = max((int(line.position[u]) + 1 for u in before[v]), default=0)
            line.move_sooner(v, max(needed, front, int(line.position[v]) - TUNING.shift_positions))
    # a launch may have gone to just behind a view that it shares with a wait's first user, in front of which both are
    move_later(v for v in reversed(line.order.tolist()) if still[v] and not sooner[v])
    return tuple(line.order.tolist())


BETWEEN_POLICIES = (IN_ORDER, FAR_AHEAD)
"""Of runs that start from the shortest order in between: near it; and the critical path far ahead."""


def relink(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """Return the best order, or a shorter one found between it and the reference, round by round."""
    found = _round(task, reference, best)
    if found.step_us >= best.step_us * (1 - TUNING.relink_gain):
        return replace(best, work=found.work)
    for _ in range(1, count_rounds(task)):
        before_us = found.step_us
        found = _round(task, reference, found)
        if found.step_us > before_us * (1 - TUNING.relink_more_gain):
            break
    return found


def _round(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """Return the best of the shortest order in between, of runs that start from it, and of the one given."""
    limit = task.limit_after(best)
    tried = (between(reference.order, best.order, percent) for percent in TUNING.relink_percents)
    orders = [order for order in tried if task.within_budget(order)]
    if not orders:
        return best
    start = shift(task, best, min(orders, key=task.step_times.of), limit)
    if start.beats(best):
        best = start
    begin = reference.reordered(start.order)
    for policy in BETWEEN_POLICIES:
        run = list_schedule(begin, task.limit, policy, task.pairs, best.step_us * (1 + SAME_STEP))
        found = best if run.made is None else shift(task, run.made, run.made.order, limit)
        best = best.or_better(found, run.work)
    return best


def between(first: Sequence[NodeId], second: Sequence[NodeId], percent: int) -> Order:
    """The order of so many percent from one valid order to another; of nodes that stand equal, as in the first."""
    at_first, at_second = np.argsort(first), np.argsort(second)  # of a permutation: its inverse, where each node stands
    return tuple(np.lexsort((at_first, (100 - percent) * at_first + percent * at_second)).tolist())


def fill_stalls(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: the order with its stalls filled, the first one first, over and over until nothing is gained."""
    if not best.reasons:
        return best
    filler = _StallFiller(task, best, task.options.effort * TUNING.stall_tried_nodes // len(best.order))
    for behind in (False, True):  # the second only adds to what the first has gained
        filler.in_vain = 0
        while filler.fill_all(behind):
            pass
    if filler.order is best.order:
        return best
    reasons: dict[NodeId, Reason] = {**best.reasons, **dict.fromkeys(filler.deferred, "deferred")}
    return replace(task.remeasured(best, filler.order), reasons=reasons)


class _StallFiller:
    """The best order so far, its step, and the collectives that went behind another."""

    def __init__(self, task: Task, best: Candidate, tries: int) -> None:
        self._task, self._nodes = task, task.problem.nodes
        self._before, self._after = neighbours(self._task.problem, self._task.pairs)
        self._tries, self.in_vain = tries, 0
        self.step_us, self.deferred = best.step_us, set[NodeId]()
        self._take(best.order)

    def fill_all(self, behind: bool) -> bool:
        """Try to fill each stall once; whether that has gained anything, and more may be tried.

        ``behind``: by compute from behind the wait, too.
        """
        before_us = self.step_us
        for wait in [v for v in self.order if self._nodes[v].kind is Kind.WAIT]:
            launch = self._nodes[wait].collective
            stall_us = self._timeline.stall_us[wait]
            if launch is None or stall_us < TUNING.stall_part * self.step_us:
                continue
            for order, moved in self._orders(wait, launch, stall_us, behind):
                if self._tries <= 0 or self.in_vain == 300:
                    return False
                if self._try(order, moved):
                    break
        return self.step_us < before_us * (1 - SAME_STEP)

    def _take(self, order: Order) -> None:
        self.order, self._position = order, positions(order)
        self._timeline = self._task.step_times.trace(order)
        self._trail = StepTrail(self._task.step_times, order)

    def _movable(
        self, end: NodeId, beyond: Iterable[NodeId], links: Sequence[tuple[NodeId, ...]], places: range, stall_us: float
    ) -> Iterator[frozenset[NodeId]]:
        """Compute as long as a stall, with what must move along; then half of these nodes, a quarter, and so on.

        Args:
            end: The launch that is waited for, or the wait: what is linked to it stays.
            beyond: The nodes in front of the launch, or behind the wait, the nearest first.
            links: Per node, what needs it (in front of the launch), or what it needs (behind the wait).
            places: Where what must move along stands.
            stall_us: How long the stall is.
        """
        jobs, taken, linked = list[frozenset[NodeId]](), set[NodeId](), {end}
        for v in beyond:
            node = self._nodes[v]
            if not linked.isdisjoint(links[v]):
                linked.add(v)
            elif node.kind is Kind.COMPUTE and node.time_us >= TUNING.stall_grain * stall_us and v not in taken:
                moved = moving_with(v, links, self._position, places, TUNING.stall_nodes)
                if moved and taken.isdisjoint(moved):
                    jobs.append(moved)
                    taken |= moved
                    stall_us -= sum(self._task.problem.compute_us[u] for u in moved)
                    if stall_us <= 0.0:
                        break
        while jobs:
            yield frozenset[NodeId]().union(*jobs)
            jobs = jobs[: len(jobs) // 2]

    def _orders(
        self, wait: NodeId, launch: NodeId, stall_us: float, behind: bool
    ) -> Iterator[tuple[Order, frozenset[NodeId]]]:
        """Orders in which compute may stall for less time, each with what is deferred in it."""
        at, until, order = self._position[launch], self._position[wait], self.order
        front = reversed(order[max(at - TUNING.stall_positions, 0) : at])
        for moved in self._movable(launch, front, self._after, range(at), stall_us):
            yield self._with_behind(launch, moved), moved
        for other in self._queue(launch):
            to = self._position[other]
            if needs := moving_with(launch, self._before, self._position, range(to, at), TUNING.stall_nodes):
                yield with_sooner(order, needs, to), frozenset()
            moved = moving_with(other, self._after, self._position, range(to, at + 1), TUNING.stall_nodes)
            if moved and launch not in moved:
                yield self._with_behind(launch, moved), moved
        next_nodes = order[until + 1 : until + TUNING.stall_positions] if behind else ()
        for moved in self._movable(wait, next_nodes, self._before, range(until, len(order)), stall_us):
            yield with_sooner(order, moved, until), frozenset()

    def _queue(self, launch: NodeId) -> list[NodeId]:
        """List what is on the launch's stream when it is launched: the last first."""
        nodes, launched_us = self._nodes, self._timeline.at_us[launch]
        before = (v for v in reversed(self.order[: self._position[launch]]) if nodes[v].kind is Kind.COLLECTIVE)
        same = (v for v in before if nodes[v].group == nodes[launch].group)
        return list(islice(takewhile(lambda v: self._timeline.finish_us[v] > launched_us, same), TUNING.stall_queue))

    def _with_behind(self, launch: NodeId, moved: Collection[NodeId]) -> Order:
        """The order with nodes from in front of a launch right behind it."""
        at, first = self._position[launch], min(self._position[v] for v in moved)
        front = self.order[first:at]
        stay, go = (v for v in front if v not in moved), (v for v in front if v in moved)
        return (*self.order[:first], *stay, launch, *go, *self.order[at + 1 :])

    def _try(self, order: Order, deferred: Collection[NodeId]) -> bool:
        """Take an order, if memory admits it and the step is shorter."""
        self._tries -= 1
        if not self._task.within_budget(order):
            return False
        step_us = self._trail.of(order)
        if step_us >= self.step_us * (1 - SAME_STEP):
            self.in_vain += 1
            return False
        self.step_us, self.in_vain = step_us, 0
        self.deferred |= {v for v in deferred if self._nodes[v].kind is Kind.COLLECTIVE}
        self._take(order)
        return True
