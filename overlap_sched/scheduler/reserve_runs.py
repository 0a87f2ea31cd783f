r"""Orders that fragment little: stages that add to the pool what runs have made, or what is mended.

A run beside an allocator that reserves no more than for the original order
(:mod:`overlap_sched.scheduler.allocator_gate`); the nearest of what was made, mended where it fails
(:mod:`overlap_sched.scheduler.repair`); runs within tighter budgets, as less that is in flight leaves fewer holes::

    bytes  |- - - - - - - - - peak - - - - - - - -
           |   ____________________________          live + part * (peak - live)
           |__/      ________              \____
           |  ______/        \_________________      live in the original order
           +-------------------------------------> position
"""

from collections.abc import Iterator

import numpy as np

from overlap_sched.scheduler.candidate import Candidate, SchedulerRun
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.needs import NOTHING, Reserve, Tried
from overlap_sched.scheduler.policies import NEAR, NEXT, WHILE_STALLED, Policy
from overlap_sched.scheduler.pool import CLOSE, Pool, nearest
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import ROOMS
from overlap_sched.scheduler.stage import Context

REPAIRS = 0.5
"""Orders mended, per unit of effort: each takes as long as several runs."""
MENDABLE = 0.2
"""What lacks more of what the original order reserves is not mended: that does not come to an end."""
MENDED_THERE = 2
"""So many of the orders within tighter budgets are mended."""
TIGHT = (0.7, 0.45, 0.3, 0.2)
"""Tighter budgets, as parts of the way from what is live in the original order at each place to its peak."""
NEAREST = Policy(0.005, 0.0, NEAR)
COMPUTE_BINDS, NETWORK_BINDS = (NEAREST, Policy(0.005, -0.2, NEXT)), (WHILE_STALLED, NEAREST)
"""Run within each: near the reference order, as that fragments least."""


def unshifted(context: Context, pool: Pool) -> Pool:
    """The stage: the best order as it was before single launches and waits were shifted."""
    order, task = pool.best.unshifted, context.task
    return pool if order is None else pool.with_made(task.remeasured(pool.best, order))


def beside_an_allocator(context: Context, pool: Pool) -> Pool:
    """The stage: the run that made the best order, once more."""
    policy, task = pool.best.policy, context.task
    if policy is None:
        return pool
    most_us = min(pool.original.step_us, pool.mended_us)  # what is longer is never chosen
    return pool.with_run(
        list_schedule(context.reference, task.limit, policy, task.pairs, most_us, gate=pool.reserve.gate())
    )


def mended(context: Context, pool: Pool) -> Pool:
    """The stage: the nearest of what was made."""
    return _mended(pool, int(REPAIRS * context.task.options.effort))


def within_tighter_budgets(context: Context, pool: Pool) -> Pool:
    """The stage: runs, where nothing near the best is held."""
    return _tighter(context, pool, pool.limit_us) if pool.held_us > pool.enough_us else pool


def mended_there(context: Context, pool: Pool) -> Pool:
    """The stage: the nearest of what there is by then."""
    return _mended(pool, MENDED_THERE) if pool.held_us > pool.enough_us else pool


def as_it_was(context: Context, pool: Pool) -> Pool:
    """The stage: the original order, which can be held itself, where nothing near the best is held."""
    original = pool.original
    if pool.held_us <= pool.enough_us or original.step_us > pool.most_us:
        return pool
    if not context.task.may_stay:
        return pool
    return pool.with_tried([(pool.reserve.overdraft(original.order), original)])


def tighter_at_any_price(context: Context, pool: Pool) -> Pool:
    """The stage: runs, however long."""
    return _tighter(context, pool, pool.most_us)


def mended_at_any_price(context: Context, pool: Pool) -> Pool:
    """The stage: the nearest of what there is."""
    return _mended(pool, MENDED_THERE)


def _tighter(context: Context, pool: Pool, most_us: float) -> Pool:
    for run in tighter_runs(pool.reserve, context.reference, most_us):
        pool = pool.with_run(run)
    return pool


def _mended(pool: Pool, most: int) -> Pool:
    """So many at most."""
    for found in nearest(pool, MENDABLE)[:most]:
        if pool.close:
            break
        pool = pool.with_tried(_repairs(pool, found))
    return pool


def _repairs(pool: Pool, found: Candidate) -> Iterator[Tried]:
    """A candidate mended by moving little; where that fits and takes longer, also by what keeps the step short."""
    for rooms in ROOMS:
        made = pool.reserve.repaired(found, rooms)
        broken = pool.reserve.overdraft(made.order)
        yield broken, made
        if broken != NOTHING or made.step_us <= pool.best.step_us * CLOSE:
            break


def tighter_runs(reserve: Reserve, reference: Reference, most_us: float) -> Iterator[SchedulerRun]:
    """Runs within tighter and tighter budgets, until all of one are given up, as the step becomes too long."""
    task = reserve.task
    compute_us, stream_us = busy_us(task.problem)
    policies = COMPUTE_BINDS if compute_us >= stream_us else NETWORK_BINDS
    live = np.minimum(task.live_ranges.profile(reference.order), task.limit)
    for part in TIGHT:
        limit = (live + part * (task.limit - live)).astype(np.int64)
        runs = [list_schedule(reference, limit, policy, task.pairs, most_us) for policy in policies]
        yield from runs
        if all(run.made is None for run in runs):
            return
