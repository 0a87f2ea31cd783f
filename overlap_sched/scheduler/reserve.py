"""An order that torch's caching allocator can hold in what the original order needs.

Live bytes within the budget are not enough: another order leaves other holes. What the original order needs is replayed
once (:mod:`overlap_sched.peak_memory.allocator.reserved`); the order found must, in plain figures:

    reserve at most 3 % more on a device without a limit,
    run, with at most one retry, in as much as the original reserves there without any,
    run in the smallest capacity in which the original runs, plus 0.2 %;

each plus the headroom; and plus two segments where the original reserves less than 1 GiB: single ones decide there.
Where it does not: the same order without its shift; then runs beside an allocator that admits no more than the original
reserves (:mod:`overlap_sched.scheduler.allocator_gate`); then the nearest of them mended where they fail
(:mod:`overlap_sched.scheduler.repair`). Where none of these can be held within two percent of the step: runs within
tighter budgets, between what is live in the original order at each place and its peak, as less that is in flight leaves
fewer holes; then runs that look where results land, and orders like those that come nearest
(:mod:`overlap_sched.scheduler.settle`). The shortest that can be held; then shifts that go less far. Where nothing can
be held, what breaks least of this within one percent of the step; within two, where all of those run out of memory.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest

import numpy as np

from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from overlap_sched.scheduler.policies import FAR, NEAR, NETWORK_BINDS, NEXT, Policy
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import ROOMS, lacking_less
from overlap_sched.scheduler.result import Work
from overlap_sched.scheduler.settle import Settling, distinct
from overlap_sched.scheduler.shift import shift

EQUAL, CLOSE, NEARLY, HELD = 1.001, 1.005, 1.01, 1.02
"""Parts of the best step. Where an order can be held within the first, none is mended any more; within the second, no
more runs are tried. Within the third, one is taken that needs less, though too much; within the last, one that fits, or
at least does not run out of memory where all others do: then neither tighter budgets nor settling are tried."""
MENDED = 1.03
"""Orders whose step is within this part of the best are mended, those first that break least."""
RUNS, REPAIRS = 3, 0.5
"""Per unit of effort: runs beside an allocator, and orders mended, each of which takes as long as several runs."""
MENDABLE = 0.2
"""What lacks more of what the original order reserves is neither settled nor mended: that does not come to an end."""
TIGHT, TIGHTER, MENDED_THERE = (0.7, 0.5, 0.4, 0.3, 0.25, 0.2), 3, 2
"""Tighter budgets, as parts of the way from what is live in the original order at each place to its peak; policies that
are run within each, and orders that are mended then."""
CAREFUL, ROUNDS, WIDTH, REPAIRED = 1, 2, 3, 3
"""Where nothing can be held: careful policies per unit of effort; rounds of settling, orders looked at in each, and
orders that are mended behind them."""
SHIFTS = (400, 100, 25, 6)
"""Positions that a shift goes at most, in turn."""
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


def within_reserve(reserve: Reserve, reference: Reference, best: Candidate, rounds: int = ROUNDS) -> Candidate:
    """The phase: the best order, or one near it that an allocator can hold.

    Args:
        reserve: What the order may need.
        reference: The order that runs start from.
        best: The best order behind all other phases.
        rounds: Of settling, where nothing else holds; 0: none, which takes half as long there or less.
    """
    breaks = reserve.overdraft(best.order)
    if breaks == NOTHING:
        return best
    held, broken = _held(reserve, reference, best, breaks, rounds)
    limit = reserve.task.limit_after(best)
    for farthest in SHIFTS:
        moved = shift(reserve.task, held, limit, farthest)
        if moved.step_us <= held.step_us:
            after = reserve.overdraft(moved.order)
            if after == NOTHING or after < broken:
                return moved
    return held


def _held(
    reserve: Reserve, reference: Reference, best: Candidate, breaks: Overdraft, rounds: int
) -> tuple[Candidate, Overdraft]:
    """The shortest order that breaks nothing; where there is none, the one near the best that breaks least."""
    task, work = reserve.task, best.work
    tried, seen = [(breaks, best)], {best.order}
    if best.unshifted is not None and best.unshifted not in seen:
        tried.append((reserve.overdraft(best.unshifted), task.remeasured(best, best.unshifted)))
        seen.add(best.unshifted)
    effort, original_us = task.options.effort, task.measured(task.problem.original_order).step_us
    held_us, in_vain = _shortest_held(tried), 0
    for run in islice(_runs(reserve, reference), RUNS * effort):
        held_us, before_us = _shortest_held(tried), held_us
        in_vain = 0 if held_us < before_us or held_us == math.inf else in_vain + 1
        if held_us <= best.step_us * CLOSE or in_vain >= effort:
            break
        found = run(beat_us=min(original_us, best.step_us * MENDED, held_us))  # what is longer is never chosen
        work = work.plus(found if isinstance(found, Work) else found.work)
        if not isinstance(found, Work) and found.order not in seen:
            seen.add(found.order)
            tried.append((reserve.overdraft(found.order), found))
    made = list(tried)
    for found in _nearest(reserve, tried, best)[: int(REPAIRS * effort)]:
        if _shortest_held(tried) <= best.step_us * EQUAL:
            break
        tried += _repairs(reserve, found, best.step_us)
    if _shortest_held(tried) > best.step_us * HELD:
        for found in _tighter_runs(reserve, reference, best.step_us * HELD):
            work = work.plus(found if isinstance(found, Work) else found.work)
            if not isinstance(found, Work) and found.order not in seen:
                seen.add(found.order)
                made.append((reserve.overdraft(found.order), found))
        tried += made
        for found in _nearest(reserve, made, best)[:MENDED_THERE]:
            tried += _repairs(reserve, found, best.step_us)
    if rounds and _shortest_held(tried) > best.step_us * HELD:
        for run in _careful_runs(reserve, reference, best.step_us * HELD):
            found = run()
            work = work.plus(found if isinstance(found, Work) else found.work)
            if not isinstance(found, Work):
                made.append((reserve.overdraft(found.order), found))
        tried += [*made, *_settled(reserve, made, best, rounds)]
    broken, found = chosen(tried, best.step_us)
    return replace(found, work=work), broken


def _repairs(reserve: Reserve, found: Candidate, best_us: float) -> Iterator[tuple[Overdraft, Candidate]]:
    """A candidate mended by moving little; where that fits and takes longer, also by what keeps the step short."""
    for rooms in ROOMS:
        mended = reserve.repaired(found, rooms)
        broken = reserve.overdraft(mended.order)
        yield broken, mended
        if broken != NOTHING or mended.step_us <= best_us * EQUAL:
            break


def _settled(
    reserve: Reserve, tried: Sequence[tuple[Overdraft, Candidate]], best: Candidate, rounds: int
) -> Iterator[tuple[Overdraft, Candidate]]:
    """Orders like those that were tried, in which results land better; where that is not enough, mended."""
    task, devices, settings = reserve.task, reserve.devices, reserve.settings
    most_us, most_bytes = best.step_us * HELD, MENDABLE * reserve.reserved_bytes
    near = [found for broken, found in tried if found.step_us <= most_us and broken.over_bytes <= most_bytes]
    settling = Settling(task, devices, settings, most_us)
    for lacking, found in distinct(settling.settled(near, rounds, WIDTH))[:REPAIRED]:
        yield reserve.overdraft(found.order), found
        if lacking == 0:
            break
        mended = lacking_less(task, found, reserve.failures, settling.lacking, most_us)
        yield reserve.overdraft(mended.order), mended


def chosen(tried: Sequence[tuple[Overdraft, Candidate]], best_us: float) -> tuple[Overdraft, Candidate]:
    """The shortest that breaks nothing, else what breaks least; none is much longer than the best (microseconds)."""
    far = [pair for pair in tried if pair[1].step_us <= best_us * HELD]
    kept = [pair for pair in far if pair[0] == NOTHING]
    if kept:
        return min(kept, key=lambda pair: pair[1].step_us)
    near = [pair for pair in far if pair[1].step_us <= best_us * NEARLY]
    if all(broken.out_of_memory for broken, _ in near):  # that ends a job which the original order does not
        near = far
    return min(near, key=lambda pair: (pair[0], pair[1].step_us))


def _shortest_held(tried: Sequence[tuple[Overdraft, Candidate]]) -> float:
    """The shortest step in microseconds of what breaks nothing; infinite where all do."""
    return min((found.step_us for broken, found in tried if broken == NOTHING), default=math.inf)


def _nearest(reserve: Reserve, tried: Sequence[tuple[Overdraft, Candidate]], best: Candidate) -> list[Candidate]:
    """What is worth mending: shorter than what can be held already, not far from the best, lacking not too much.

    First what breaks least, to a hundredth of what may be reserved; of those, the shortest, to a thousandth.
    """

    def key(pair: tuple[Overdraft, Candidate]) -> tuple[int, ...]:
        broken, found = pair
        hundredths = 100 * broken.over_bytes // max(reserve.reserved_bytes, 1)
        thousandths = int(1000 * found.step_us / best.step_us)
        return broken.out_of_memory, broken.retries, hundredths, thousandths, broken.over_bytes

    most_us, most_bytes = min(best.step_us * MENDED, _shortest_held(tried)), MENDABLE * reserve.reserved_bytes
    worth = [
        pair for pair in tried if pair[0] != NOTHING and pair[1].step_us < most_us and pair[0].over_bytes <= most_bytes
    ]
    return [found for _, found in sorted(worth, key=key)]


def _runs(reserve: Reserve, reference: Reference) -> Iterator[Callable[..., Candidate | Work]]:
    """Runs beside an allocator, policy by policy; they are told what step is to be beaten."""
    task = reserve.task
    for policy in _policies(reserve):
        for gate in reserve.gates():
            yield partial(list_schedule, reference, task.limit, policy, task.pairs, gate=gate)


def _tighter_runs(reserve: Reserve, reference: Reference, most_us: float) -> Iterator[Candidate | Work]:
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
        if all(isinstance(run, Work) for run in runs):
            return


def _careful_runs(reserve: Reserve, reference: Reference, most_us: float) -> Iterator[Callable[[], Candidate | Work]]:
    """Runs that look where results land, of the first policies; given up where a step is too long."""
    task = reserve.task
    for policy in islice(_policies(reserve), CAREFUL * task.options.effort):
        for gate in reserve.careful_gates(reference):
            yield partial(list_schedule, reference, task.limit, policy, task.pairs, most_us, gate)


def _policies(reserve: Reserve) -> Iterator[Policy]:
    compute_us, stream_us = busy_us(reserve.task.problem)
    yield from POLICIES if compute_us >= stream_us else _in_turn(NETWORK_BINDS, POLICIES)


def _in_turn(first: Sequence[Policy], second: Sequence[Policy]) -> Iterator[Policy]:
    """One of each, until there are none."""
    for pair in zip_longest(first, second):
        yield from (policy for policy in pair if policy is not None)
