r"""Orders between the reference and the best one: what a run moves far, moved part of the way.

A run is greedy. Where the network and memory bind at once, what it brings forward early (a gather, the compute that a
launch waits for) takes room from launches that would have been worth more. Part of the way there may be enough. A node
of an order in between stands, by its positions in both, that many percent from the one to the other::

    reference   a b c d e f         position of f: 6
    best        f a b c d e                        1
    60 %        a b f c d e                        3

What comes before something in both orders does so in between, too, as each position is a weighted mean of two: an order
in between is always valid. Whether memory admits it must be looked up. Its launches and waits are shifted as far as
memory goes (:mod:`overlap_sched.scheduler.shift`), and runs start from the shortest of these orders. (Path relinking:
Glover, Laguna, Martí, *Fundamentals of scatter search and path relinking*, 2000; from the best of all to the next, as
they do it, has earned next to nothing.)
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
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.shift import with_order
from overlap_sched.scheduler.stage import Context

PARTS = (30, 50, 70, 90)
"""Percent of the way."""
POLICIES = (IN_ORDER, FAR_AHEAD)
"""Of runs that start from the shortest order in between: near it; and the critical path far ahead."""
WORTH = 0.02
"""It must gain more of the step than keeping to an allocator may cost by default (``Options.allocator_cost``): shorter
orders are harder to hold."""
NEAR_BOUND = 1 + 2 * WORTH
"""Nothing is tried where the step is below this part of the bound of any order: half of what lies between is too much
to ask for."""
MOST_NODES = 15_000
"""Per unit of effort; larger graphs are left alone."""


def relinked(context: Context, best: Candidate) -> Candidate:
    """The stage: the best order, or a shorter one found between it and the reference."""
    task = context.task
    if not best.reasons or len(best.order) > task.options.effort * MOST_NODES:
        return best
    if best.step_us <= lower_bound_us(task.problem) * NEAR_BOUND:
        return best
    made = _shortest(context, best)
    return made if made.step_us < best.step_us * (1 - WORTH) else replace(best, work=made.work)


def _shortest(context: Context, best: Candidate) -> Candidate:
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
