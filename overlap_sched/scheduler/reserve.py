"""An order that torch's caching allocator can hold in what the original order needs.

Live bytes within the budget are not enough: another order leaves other holes. What the original order needs is replayed
once (:mod:`overlap_sched.peak_memory.allocator.reserved`); the order found must, in plain figures:

    reserve at most 3 % more on a device without a limit,
    run, with at most one retry, in as much as the original reserves there without any,
    run in the smallest capacity in which the original runs, plus 0.2 %;

each plus the headroom; and plus two segments where the original reserves less than 1 GiB: single ones decide there.
Where it does not: the same order without its shift; the run that made it once more, beside an allocator that reserves
no more than for the original order (:mod:`overlap_sched.scheduler.allocator_gate`); then the nearest of them mended
where they fail (:mod:`overlap_sched.scheduler.repair`). Where none of these can be held within two percent of the step:
runs within tighter budgets, between what is live in the original order at each place and its peak, as less that is in
flight leaves fewer holes; and the original one, which can be held itself. Where even that is too long: a random walk
from all of these (:mod:`overlap_sched.scheduler.wander`). The shortest that can be held at the price asked for
(``Options.allocator_cost``). Where nothing can be held at that price, what loses least within it, a percent of memory
counting as much as a percent of the step. Then shifts that go less far.

What would not run where the original order does, not even with a few MiB or retries more, is never taken: instead the
shortest that does, whatever it costs and whatever it would reserve where there is no limit. Runs within tighter budgets
once more, mended; walks to steps between the best one and the shortest that runs; the original one is the last resort.
"""

from dataclasses import replace

from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.needs import NOTHING, Reserve, Tried
from overlap_sched.scheduler.pool import Pool
from overlap_sched.scheduler.result import Faster
from overlap_sched.scheduler.shift import shift
from overlap_sched.scheduler.stage import Context

SHIFTS = (400, 25)
"""Positions that a shift goes at most, in turn."""


def within_reserve(context: Context, reserve: Reserve, best: Candidate) -> Candidate:
    """Return the best order by live bytes, or one near it that an allocator can hold.

    Args:
        context: Of the stages behind ``best``.
        reserve: What the order may need.
        best: The best order by live bytes.
    """
    pool = Pool.of(reserve, best)
    breaks, _ = pool.taken
    if breaks == NOTHING:
        return best
    pool = context.through(context.stages.fitting, pool)
    broken, held = pool.chosen()
    if not reserve.runs(broken):
        pool = context.through(context.stages.at_any_price, pool.at_any_price())
        broken, held = _running(pool, reserve, breaks.lacks_bytes) or (broken, replace(held, work=pool.work))
    return context.through(context.stages.fitted, replace(pool, reserve=reserve, taken=(broken, held))).taken[1]


def _running(pool: Pool, reserve: Reserve, lacks_bytes: int) -> Tried | None:
    """The shortest that runs where the original order does, or with a few MiB more; ``None``: nothing does."""
    for lacks, shortest in sorted(pool.tried, key=lambda pair: pair[1].step_us):
        if lacks == NOTHING and reserve.runs(lacks := reserve.overdraft(shortest.order)):
            return lacks, replace(shortest, work=pool.work, faster=Faster(pool.best.step_us, lacks_bytes))
    return None


def shifted_less_far(context: Context, pool: Pool) -> Pool:
    """The stage: what is taken, shifted as far as the allocator lets it, at no loss."""
    (broken, held), limit = pool.taken, context.task.limit_after(pool.best)
    for farthest in SHIFTS:
        moved = shift(context.task, held, limit, farthest)
        if moved.step_us <= held.step_us:
            after = pool.reserve.overdraft(moved.order)
            if after == NOTHING or (after < broken and pool.reserve.no_worse(after, broken)):
                return replace(pool, taken=(after, moved))
    return pool
