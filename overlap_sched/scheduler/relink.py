r"""Orders between the reference and the best one: what a run moves far, moved part of the way.

A run is greedy. Where the network and memory bind at once, what it brings forward early (a gather, the compute that a
launch waits for) takes room from launches that would have been worth more. Part of the way there may be enough. A node
of an order in between stands, by its positions in both, that many percent from the one to the other::

    reference   a b c d e f         position of f: 6
    best        f a b c d e                        1
    60 %        a b f c d e                        3

What comes before something in both orders does so in between, too, as each position is a weighted mean of two: an order
in between is always valid. Whether memory admits it must be looked up. Its launches and waits are shifted as far as
memory goes (:mod:`overlap_sched.scheduler.shift`); runs start from the shortest of these orders; and the best of all is
the next one that orders lie in between to. (Path relinking: Glover, Laguna, Martí, *Fundamentals of scatter search and
path relinking*, 2000.)

Rounds end where one gains next to nothing, and there are none where the best is near the bound already.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.problem import NodeId, Order
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import FAR_AHEAD, IN_ORDER
from overlap_sched.scheduler.polish import farthest, polished
from overlap_sched.scheduler.portfolio import RUN_NODES, near_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.shift import with_order
from overlap_sched.scheduler.stage import Context

PARTS = (30, 50, 70, 90)
"""Percent of the way."""
POLICIES = (IN_ORDER, FAR_AHEAD)
"""Of runs that start from the shortest order in between: near it; and the critical path far ahead."""
NEAR_BOUND = 1.015
"""There are no rounds where the best step is below this part of the bound of any order."""
WORTH, WORTH_ALL = 0.001, 0.02
"""A round that gains less of the step is the last one. What all rounds gain must be more than what keeping to an
allocator may cost by default (``Options.allocator_cost``): shorter orders are harder to hold."""


def relinked(context: Context, best: Candidate) -> Candidate:
    """The stage: the best order, or a shorter one found between it and the reference, round by round.

    A unit of effort is a round on a graph of up to 15,000 nodes, less on a larger one.
    """
    task = context.task
    rounds = task.options.effort * RUN_NODES // max(len(best.order), RUN_NODES)
    if not best.reasons or not rounds or best.step_us <= near_us(task, context.reference):
        return best
    enough_us, given = lower_bound_us(task.problem) * NEAR_BOUND, best
    for _ in range(rounds):
        before_us = best.step_us
        if before_us <= enough_us:
            break
        best = _round(context, best)
        if best.step_us > before_us * (1 - WORTH):
            break
    return best if best.step_us < given.step_us * (1 - WORTH_ALL) else replace(given, work=best.work)


def _round(context: Context, best: Candidate) -> Candidate:
    """Return the best of the orders in between, of runs that start from the shortest one, and of the one given."""
    task, reference = context.task, context.reference
    limit, far = task.limit_after(best), farthest(context)
    orders = [order for percent in PARTS if task.within_budget(order := between(reference.order, best.order, percent))]
    if not orders:
        return best
    near = [replace(with_order(task, best, order, limit, far), unshifted=order) for order in orders]
    start = min(near, key=lambda found: (found.step_us, found.peak_bytes))
    if start.beats(best):
        best = start
    begin = Reference(task.problem, start.order, reference.live_ranges)
    for policy in POLICIES:
        run = list_schedule(begin, task.limit, policy, task.pairs, best.step_us * (1 + SAME_STEP))
        found = best if run.made is None else polished(context, run.made, limit)
        best = best.or_better(found, run.work)
    return best


def between(first: Sequence[NodeId], second: Sequence[NodeId], percent: int) -> Order:
    """The order of so many percent from one valid order to another; of nodes that stand equal, as in the first."""
    at_first, at_second = np.argsort(first), np.argsort(second)  # of a permutation: its inverse, where each node stands
    return tuple(np.lexsort((at_first, (100 - percent) * at_first + percent * at_second)).tolist())
