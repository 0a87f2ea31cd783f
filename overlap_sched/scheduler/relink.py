r"""Orders between the reference and the best one: what a run moves far, moved part of the way.

A run is greedy. Where the network and memory bind at once, what it brings forward early (a gather, the compute that a
launch waits for) takes room from launches that would have been worth more. Part of the way there may be enough. A node
of an order in between stands, by its positions in both, that many percent from the one to the other::

    reference   a b c d e f         position of f: 6
    best        f a b c d e                        1
    60 %        a b f c d e                        3

What comes before something in both orders does so in between, too, as each position is a weighted mean of two: an order
in between is always valid. Whether memory admits it must be looked up. The shortest has its launches and waits shifted
as far as memory goes (:mod:`overlap_sched.scheduler.shift`); runs start from there; and where that gains enough, the
best of all is the next one that orders lie in between to. (Path relinking: Glover, Laguna, Martí, *Fundamentals of
scatter search and path relinking*, 2000.)
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.problem import NodeId, Order
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import FAR_AHEAD, IN_ORDER
from overlap_sched.scheduler.portfolio import RUN_NODES
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.shift import shift
from overlap_sched.scheduler.stage import Context

PARTS = (30, 50, 70, 90)
"""Percent of the way."""
POLICIES = (IN_ORDER, FAR_AHEAD)
"""Of runs that start from the shortest order in between: near it; and the critical path far ahead."""
WORTH, WORTH_MORE = 0.02, 0.002
"""A first round that gains less of the step is not taken and the last one, a later one that gains less than the second
is the last."""
NEAR_BOUND = 1 + 2 * WORTH
"""Nothing is tried where the step is below this part of the bound of any order: half of what lies between is too much
to ask for."""


def relinked(context: Context, best: Candidate) -> Candidate:
    """The stage: the best order, or a shorter one found between it and the reference, round by round.

    A unit of effort is a round on a graph of up to 15,000 nodes, less on a larger one.
    """
    rounds = context.task.options.effort * RUN_NODES // max(len(best.order), RUN_NODES)
    if not best.reasons or not rounds or best.step_us <= lower_bound_us(context.task.problem) * NEAR_BOUND:
        return best
    found = _round(context, best)
    if found.step_us >= best.step_us * (1 - WORTH):
        return replace(best, work=found.work)
    for _ in range(1, rounds):
        before_us = found.step_us
        found = _round(context, found)
        if found.step_us > before_us * (1 - WORTH_MORE):
            break
    return found


def _round(context: Context, best: Candidate) -> Candidate:
    """Return the best of the shortest order in between, of runs that start from it, and of the one given."""
    task, reference = context.task, context.reference
    limit = task.limit_after(best)
    orders = [order for percent in PARTS if task.within_budget(order := between(reference.order, best.order, percent))]
    if not orders:
        return best
    shortest = min(orders, key=task.step_times.of)
    start = shift(task, best, shortest, limit)
    if start.beats(best):
        best = start
    begin = Reference(task.problem, start.order, reference.live_ranges)
    for policy in POLICIES:
        run = list_schedule(begin, task.limit, policy, task.pairs, best.step_us * (1 + SAME_STEP))
        found = best if run.made is None else shift(task, run.made, run.made.order, limit)
        best = best.or_better(found, run.work)
    return best


def between(first: Sequence[NodeId], second: Sequence[NodeId], percent: int) -> Order:
    """The order of so many percent from one valid order to another; of nodes that stand equal, as in the first."""
    at_first, at_second = np.argsort(first), np.argsort(second)  # of a permutation: its inverse, where each node stands
    return tuple(np.lexsort((at_first, (100 - percent) * at_first + percent * at_second)).tolist())
