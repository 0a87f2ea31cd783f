"""Walks at random, for the pool: to what can be held, and to what is shorter.

See :mod:`overlap_sched.scheduler.wander`.
"""

import math

from overlap_sched.scheduler.pool import HELD, Pool, distinct
from overlap_sched.scheduler.stage import Context
from overlap_sched.scheduler.wander import WORTH, wandered

OTHERS = 4
"""Walks go part of the way to so many of the orders that break least, too, and to those that all runs start from."""
WALK_NODES, MOST_TRIALS = 350_000, 300
"""Trials that a walk may make in vain: so many nodes in all of them, per unit of effort, and so many at most."""
HALVINGS = 5
"""Walks between a step that is too short and one that is not."""


def walked(context: Context, pool: Pool) -> Pool:
    """The stage: where nothing near the best is held, to what is, and to steps between the best and what is found."""
    low_us, high_us = pool.best.step_us, min(pool.held_us, pool.most_us)
    if pool.held_us > pool.most_us:  # nothing is held at that price
        pool = _wandered(context, pool, high_us)
        high_us = min(pool.held_us, high_us)
    for _ in range(HALVINGS):
        if high_us <= low_us * HELD:
            break
        middle_us = math.sqrt(low_us * high_us)
        pool = _wandered(context, pool, middle_us)
        if pool.held_us <= high_us * (1 - WORTH):
            high_us = pool.held_us
            low_us = low_us if low_us < high_us else pool.best.step_us
        else:
            low_us = middle_us
    return pool


def _wandered(context: Context, pool: Pool, enough_us: float) -> Pool:
    """With the front of a walk from all that was tried."""
    trials = context.task.options.effort * WALK_NODES // max(len(pool.best.order), 1)
    if not trials:
        return pool
    others = [pool.original.order, tuple(context.reference.order)]
    others += [found.order for found in distinct(pool.tried)[:OTHERS]]
    found = wandered(pool.reserve, pool.tried, pool.best, others, enough_us, min(trials, MOST_TRIALS), context.seed)
    return pool.with_tried((pool.reserve.overdraft(each.order), each) for each in found)
