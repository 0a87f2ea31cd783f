r"""Orders that fragment little: stages that add to the pool what runs have made, or what is mended.

Runs beside an allocator that admits no more than the original order reserves
(:mod:`overlap_sched.scheduler.allocator_gate`); the nearest of what was made, mended where it fails
(:mod:`overlap_sched.scheduler.repair`); runs within tighter budgets, as less that is in flight leaves fewer holes::

    bytes  |- - - - - - - - - peak - - - - - - - -
           |   ____________________________          live + part * (peak - live)
           |__/      ________              \____
           |  ______/        \_________________      live in the original order
           +-------------------------------------> position
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest

import numpy as np

from overlap_sched.scheduler.candidate import Candidate, SchedulerRun
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.needs import NOTHING, Reserve, Tried
from overlap_sched.scheduler.policies import FAR, NEAR, NETWORK_BINDS, NEXT, Policy
from overlap_sched.scheduler.pool import CLOSE, Pool, nearest
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import ROOMS
from overlap_sched.scheduler.stage import Context

RUNS, REPAIRS = 2, 0.5
"""Per unit of effort: runs beside an allocator, and orders mended, each of which takes as long as several runs."""
MENDABLE = 0.2
"""What lacks more of what the original order reserves is not mended: that does not come to an end."""
MENDED_THERE = 2
"""So many of the orders within tighter budgets are mended."""
TIGHT, TIGHTER = (0.7, 0.45, 0.3, 0.2), 2
"""Tighter budgets, as parts of the way from what is live in the original order at each place to its peak; and policies
that are run within each."""
_NEAREST = ((0.0, NEAR), (-0.2, NEXT), (0.12, FAR))
"""Slack and window."""
POLICIES = (
    *(Policy(0.005, slack, window) for slack, window in _NEAREST),
    Policy(0.02, 0.12, FAR),
    *(Policy(0.005, slack, NEAR) for slack in (-0.03, 0.12)),
    *(Policy(0.02, slack, window) for slack, window in (*_NEAREST[:2], (-0.03, NEAR), (0.12, NEAR))),
    *(Policy(0.0, slack, window) for slack, window in (*_NEAREST, (-0.03, NEAR), (0.12, NEAR))),
)
"""Near the reference order in one way or another: that is what fragments least."""


def unshifted(context: Context, pool: Pool) -> Pool:
    """The stage: the best order as it was before single launches and waits were shifted."""
    order, task = pool.best.unshifted, context.task
    return pool if order is None else pool.with_made(task.remeasured(pool.best, order))


def beside_an_allocator(context: Context, pool: Pool) -> Pool:
    """The stage: runs until an order near the best is held, or no shorter one has been for a while."""
    effort, after_us, in_vain = context.task.options.effort, pool.held_us, 0
    for run in islice(runs_beside_an_allocator(pool.reserve, context.reference), RUNS * effort):
        after_us, before_us = pool.held_us, after_us
        in_vain = 0 if after_us < before_us or after_us == math.inf else in_vain + 1
        if pool.close or in_vain >= effort:
            break
        pool = pool.with_run(run(beat_us=min(pool.original.step_us, pool.mended_us)))  # what is longer is never chosen
    return pool


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
    if not context.task.within_budget(original.order):
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


def runs_beside_an_allocator(reserve: Reserve, reference: Reference) -> Iterator[Callable[..., SchedulerRun]]:
    """Runs beside an allocator, policy by policy; they are told what step is to be beaten."""
    task = reserve.task
    for policy in _policies(reserve):
        for gate in reserve.gates():
            yield partial(list_schedule, reference, task.limit, policy, task.pairs, gate=gate)


def tighter_runs(reserve: Reserve, reference: Reference, most_us: float) -> Iterator[SchedulerRun]:
    """Runs within tighter and tighter budgets, until all of one are given up, as the step becomes too long."""
    task = reserve.task
    live = np.minimum(task.live_ranges.profile(reference.order), task.limit)
    for part in TIGHT:
        limit = (live + part * (task.limit - live)).astype(np.int64)
        runs = [
            list_schedule(reference, limit, policy, task.pairs, most_us)
            for policy in islice(_policies(reserve), TIGHTER)
        ]
        yield from runs
        if all(run.made is None for run in runs):
            return


def _policies(reserve: Reserve) -> Iterator[Policy]:
    compute_us, stream_us = busy_us(reserve.task.problem)
    yield from POLICIES if compute_us >= stream_us else _in_turn(NETWORK_BINDS, POLICIES)


def _in_turn(first: Sequence[Policy], second: Sequence[Policy]) -> Iterator[Policy]:
    """One of each, until there are none."""
    for pair in zip_longest(first, second):
        yield from (policy for policy in pair if policy is not None)
