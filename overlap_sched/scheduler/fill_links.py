"""Fill idle links: where the network binds, launches move to where its busiest link would be idle.

A link is idle where nothing may be launched: beside compute that takes all the memory there is, say. Where the network
binds, the step is longer by as much. What was launched before, and is not needed soon, could run there::

    compute |= x needed =|              |= all the memory there is =|= d needed =|
    link    |===== c =====|== x ==|                                 |== d ==|

    compute |         |= x needed =|= all the memory there is =|    |= d needed =|
    link    |== x ==|              |===== c =====|             |== d ==|

So one launch from before an idle place is deferred until there; or one from behind it is brought forward, with the
cheap compute that it waits for. The former leaves another hole, where something else may fit. Which moves lead on is
seen later, and memory admits few: they are tried at random, from a seed of its own (all ranks get the same order), and
kept where the step is no longer for it.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Order, Position, Problem
from overlap_sched.problem.precedence import moving_with, neighbours, positions, with_sooner
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate, Task
from overlap_sched.scheduler.needs import Reserve, holds_as_well
from overlap_sched.scheduler.priority import CHEAP
from overlap_sched.scheduler.stage import Context
from overlap_sched.scheduler.step_time import StepTrail

TRIED_NODES, MOST_TRIALS = 500_000, 300
"""Orders that are tried per unit of effort: so many nodes in all of them, and so many at most."""
MOST_IN_VAIN = 100
"""After so many in turn of which none is shorter, there are no more."""
GRAIN = 2e-5
"""Where a link is idle for less than this part of the step, nothing is moved."""
FORWARD = 0.3
"""Part of the moves that bring a launch forward."""
FARTHEST = 30
"""Launches of the link that a move passes at most, few more often than many."""
MOST_NODES = 8
"""A launch and what it waits for."""


class IdlePlace(NamedTuple):
    """Where a link is idle: microseconds, and the position of what the compute stream has begun by then."""

    idle_us: float
    position: Position


def links_filled(context: Context, best: Candidate) -> Candidate:
    """The stage: see :func:`fill_links`."""
    return fill_links(context.task, best, context.reserve, context.seed)


def fill_links(task: Task, best: Candidate, reserve: Reserve | None, seed: int = 0) -> Candidate:
    """Return the candidate, or a shorter one in which the busiest link is idle for less time.

    Args:
        task: What is asked for. Nothing is tried where all compute takes longer than the busiest link.
        best: A candidate within the budget.
        reserve: What orders may need of the allocator: none is taken that breaks more than the candidate does.
            ``None``: live bytes alone count.
        seed: Of what is tried at random.
    """
    problem, launches = task.problem, busiest_link(task.problem)
    trials = task.options.effort * min(TRIED_NODES // len(problem.nodes), MOST_TRIALS)
    if not trials or sum(problem.nodes[v].time_us for v in launches) < sum(problem.compute_us):
        return best
    filler = _Filler(task, launches, best, reserve, seed)
    for _ in range(trials):
        if not filler.places or filler.in_vain == MOST_IN_VAIN:
            break
        filler.try_one()
    return task.remeasured(best, filler.order) if filler.step_us < best.step_us * (1 - SAME_STEP) else best


def busiest_link(problem: Problem) -> list[NodeId]:
    """The collectives of the groups that share the link with the most to do."""
    launches: dict[str, list[NodeId]] = {}
    for v in problem.collectives:
        launches.setdefault(problem.contention.link_of(problem.nodes[v].group), []).append(v)
    return max(launches.values(), key=lambda its: sum(problem.nodes[v].time_us for v in its), default=[])


def idle_places(problem: Problem, order: Order, launches: Sequence[NodeId], least_us: float) -> list[IdlePlace]:
    """Where the link of some collectives is idle for longer than that, between the first and the last of them."""
    timeline, places = replay(problem, order), list[IdlePlace]()
    begun_us = [timeline.at_us[v] for v in order]
    in_turn = sorted(launches, key=timeline.start_us.__getitem__)
    busy_until_us = timeline.finish_us[in_turn[0]] if in_turn else 0.0
    for v in in_turn:
        idle_us = timeline.start_us[v] - busy_until_us
        if idle_us > least_us:
            places.append(IdlePlace(idle_us, bisect_right(begun_us, busy_until_us) - 1))
        busy_until_us = max(timeline.finish_us[v], busy_until_us)
    return places


class _Filler:
    """The best order so far.

    Attributes:
        order, step_us: It, and its step. places: where the link is idle.
        in_vain: Orders tried since a shorter one was found.
    """

    def __init__(
        self, task: Task, launches: Sequence[NodeId], best: Candidate, reserve: Reserve | None, seed: int
    ) -> None:
        self._task, self._launches = task, launches
        self._may_be_held = holds_as_well(reserve, best.order)
        self._before, self._after = neighbours(task.problem, task.pairs)
        self._cheap_us = CHEAP * sum(task.problem.compute_us)
        self._rng = random.Random(seed)
        self.step_us, self.in_vain = best.step_us, 0
        self._take(best.order)

    def try_one(self) -> None:
        """Try one order like the best, which it becomes where its step is no longer."""
        self.in_vain += 1
        order = self._moved()
        if order is None or not self._task.within_budget(order):
            return
        step_us = self._trail.of(order)
        if step_us > self.step_us * (1 + SAME_STEP) or not self._may_be_held(order):
            return
        if step_us < self.step_us * (1 - SAME_STEP):
            self.step_us, self.in_vain = step_us, 0
        self._take(order)

    def _take(self, order: Order) -> None:
        self.order, self._position = order, positions(order)
        self._trail = StepTrail(self._task.step_times, order)
        self._in_turn = sorted(self._launches, key=self._position.__getitem__)
        self.places = idle_places(self._task.problem, order, self._launches, GRAIN * self.step_us)

    def _moved(self) -> Order | None:
        """With one launch at a place where the link is idle, a long one more often; ``None``: it cannot go there."""
        rng = self._rng
        at = rng.choices(self.places, weights=[place.idle_us for place in self.places])[0].position
        forward, passed = rng.random() < FORWARD, int(FARTHEST ** rng.random())
        behind = bisect_left(self._in_turn, at, key=self._position.__getitem__)
        which = behind + (passed - 1 if forward else -passed)
        if not 0 <= which < len(self._in_turn):
            return None
        return self._brought_forward(self._in_turn[which], at) if forward else self._deferred(self._in_turn[which], at)

    def _deferred(self, v: NodeId, at: Position) -> Order | None:
        """With a node right before what is at a position, or before the first that needs it."""
        at, before = min([at, *(self._position[u] for u in self._after[v])]), self._position[v]
        if at <= before + 1:
            return None
        return (*self.order[:before], *self.order[before + 1 : at], v, *self.order[at:])

    def _brought_forward(self, v: NodeId, at: Position) -> Order | None:
        """With a node right before what is at a position, and before it what it needs, if that is little."""
        moved = moving_with(v, self._before, self._position, range(at, len(self.order)), MOST_NODES)
        if not moved or not all(self._is_cheap(u) for u in moved if u != v):
            return None
        return with_sooner(self.order, moved, at)

    def _is_cheap(self, v: NodeId) -> bool:
        node = self._task.problem.nodes[v]
        return node.kind is Kind.COMPUTE and node.time_us <= self._cheap_us
