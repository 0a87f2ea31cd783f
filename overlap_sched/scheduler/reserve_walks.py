"""Walks at random, for the pool: to what can be held, and to what is shorter.

See :mod:`overlap_sched.scheduler.wander`.
"""

import math
from itertools import pairwise

from overlap_sched.scheduler.pool import HELD, Pool, distinct
from overlap_sched.scheduler.stage import Context
from overlap_sched.scheduler.wander import WORTH, wandered

LONGER = (HELD, 1.05, 1.1, 1.2, 1.5, math.inf)
"""Parts of the best step that are short enough for a walk, in turn, up to the first that is no less than what may be
taken. A higher price begins with the same walks as a lower one, so that it seldom ends with a longer order."""
OTHERS = 4
"""Walks go part of the way to so many of the orders that break least, too, and to those that all runs start from."""
WALK_NODES, MOST_TRIALS = 1_000_000, 300
"""Trials that a walk may make in vain, per unit of effort: so many nodes in all of them, and so many at most."""
SHORTER = 0.6
"""Part of them, where an order is held already and a walk looks for a shorter one."""
HALVINGS, HALVING_NODES = 4, 350_000
"""Walks between a step that is too short and one that is not, and the nodes in all orders that each may try in vain,
per unit of effort."""


def walked(context: Context, pool: Pool) -> Pool:
    """The stage: to what is held, first to what is short; if in vain, to what is shorter than is held."""
    if pool.close:
        return pool
    nodes, before_us = max(len(pool.best.order), 1), pool.held_us
    trials = context.task.options.effort * min(WALK_NODES // nodes, MOST_TRIALS)
    for enough_us in _enough_us(context, pool):
        if pool.held_us == before_us and enough_us < before_us:
            pool = _wandered(context, pool, enough_us, trials)
    if pool.held_us == before_us and before_us <= pool.most_us:
        pool = _wandered(context, pool, before_us * (1 - WORTH), int(SHORTER * trials))
    return pool


def halved(context: Context, pool: Pool) -> Pool:
    """The stage: to a step between one that is too short and the shortest that breaks nothing."""
    trials = context.task.options.effort * HALVING_NODES // max(len(pool.best.order), 1)
    low_us, high_us = pool.best.step_us, min(pool.held_us, pool.most_us)
    for _ in range(HALVINGS if trials else 0):
        middle_us = math.sqrt(low_us * high_us)
        pool = _wandered(context, pool, middle_us, min(trials, MOST_TRIALS))
        if pool.held_us <= high_us * (1 - WORTH):
            high_us = pool.held_us
            low_us = low_us if low_us < high_us else pool.best.step_us
        else:
            low_us = middle_us
        if high_us <= low_us * HELD:
            break
    return pool


def _enough_us(context: Context, pool: Pool) -> list[float]:
    """Steps that are short enough for a walk, in turn.

    The last may be longer than what may be taken: once an order is held there, the walk goes on to shorter ones.
    """
    most = 1 + context.task.options.allocator_cost / 100
    parts = [min(HELD, most), *(part for before, part in pairwise(LONGER) if before < most)]
    return [min(pool.best.step_us * part, pool.original.step_us) for part in parts]


def _wandered(context: Context, pool: Pool, enough_us: float, trials: int) -> Pool:
    """With the front of a walk from all that was tried."""
    others = [pool.original.order, tuple(context.reference.order)]
    others += [found.order for found in distinct(pool.tried)[:OTHERS]]
    found = wandered(pool.reserve, pool.tried, pool.best, others, enough_us, trials, context.seed)
    return pool.with_tried((pool.reserve.overdraft(each.order), each) for each in found)
