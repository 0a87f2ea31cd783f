"""An order that torch's caching allocator can hold in what the original order needs.

Live bytes within the budget are not enough: another order leaves other holes. What the original order needs is replayed
once (:mod:`overlap_sched.peak_memory.allocator.reserved`); the order found must, in plain figures:

    reserve at most 3 % more on a device without a limit,
    run, with at most one retry, in as much as the original reserves there without any,
    run in the smallest capacity in which the original runs, plus 0.2 %;

each plus the headroom; and plus two segments where the original reserves less than 1 GiB: single ones decide there.
Where it does not: the same order without its shift; then runs beside an allocator that admits no more than the original
reserves (:mod:`overlap_sched.scheduler.allocator_gate`); then the nearest of them mended where they fail
(:mod:`overlap_sched.scheduler.repair`); the shortest that can be held; then shifts that go less far. Where nothing can
be held, what breaks least of this within one percent of the step; within two, where all of those run out of memory.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice, zip_longest
from typing import NamedTuple

from overlap_sched.options import headroom_bytes
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, AllocatorSettings
from overlap_sched.scheduler.allocator_gate import AllocatorGate
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import FAR, NEAR, NETWORK_BINDS, NEXT, Policy
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import ROOMS, repaired
from overlap_sched.scheduler.result import Work
from overlap_sched.scheduler.room import Growth
from overlap_sched.scheduler.shift import shift

MOST_RESERVED, MOST_CAPACITY, MOST_RETRIES = 1.03, 1.002, 1
"""As above; parts of what the original order needs."""
EQUAL, CLOSE, NEARLY, HELD = 1.001, 1.005, 1.01, 1.02
"""Parts of the best step. Where an order can be held within the first, none is mended any more; within the second, no
more runs are tried. Within the third, one is taken that needs less, though too much; within the last, one that fits, or
at least does not run out of memory where all others do."""
MENDED = 1.03
"""Orders whose step is within this part of the best are mended, those first that break least."""
RUNS, REPAIRS = 3, 0.5
"""Per unit of effort: runs beside an allocator, and orders mended, each of which takes as long as several runs."""
SMALL_BYTES, SEGMENTS_BYTES = 1024 * MIB, 40 * MIB
"""What reserves less than the first may reserve the second more."""
SHIFTS = (400, 100, 25, 6)
"""Positions that a shift goes at most, in turn."""
SPARE = 0.01
"""A run may make the allocator grow ahead of the original order by so much of what that reserves."""

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


class Overdraft(NamedTuple):
    """What an order breaks, worst first; all zero: nothing.

    ``over_bytes``: what it reserves, or the capacity that it needs, above what it may; the larger of the two.
    """

    out_of_memory: bool
    retries: int
    over_bytes: int


NOTHING = Overdraft(False, 0, 0)


@dataclass(frozen=True)
class Reserve:
    """What the original order needs of the allocator.

    Attributes:
        task: Whose orders are looked at. settings: Of the allocator.
        reserved_bytes: Reserved without a limit. capacity_bytes: the smallest that suffices. spare_bytes: on top.
    """

    task: Task
    settings: AllocatorSettings
    reserved_bytes: int
    capacity_bytes: int
    spare_bytes: int

    @classmethod
    def of(cls, task: Task, settings: AllocatorSettings) -> "Reserve":
        """Of a task's original order."""
        requests = requests_of(task.live_ranges, task.problem.original_order)
        reserved = requests.replayed(settings).peak_reserved_bytes
        spare_bytes = headroom_bytes(task.options.headroom, task.base_bytes)
        spare_bytes += SEGMENTS_BYTES if reserved < SMALL_BYTES else 0
        return cls(task, settings, reserved, requests.smallest_capacity(settings, reserved), spare_bytes)

    def rewritten(self, task: Task) -> "Reserve":
        """For orders of what the problem has become: they may need what the problem as it was needs."""
        return replace(self, task=task)

    def overdraft(self, order: Order) -> Overdraft:
        """What a valid order breaks."""
        requests = requests_of(self.task.live_ranges, order)
        reserved = requests.replayed(self.settings).peak_reserved_bytes
        over_bytes = max(reserved - int(self.reserved_bytes * MOST_RESERVED) - self.spare_bytes, 0)
        retries = requests.retries(self.reserved_bytes + self.spare_bytes, self.settings)
        if not requests.fits(self.most_capacity, self.settings):
            needed = requests.smallest_capacity(self.settings, reserved)
            over_bytes = max(over_bytes, needed - self.most_capacity, 1)
        return Overdraft(retries is None, max((retries or 0) - MOST_RETRIES, 0), over_bytes)

    @property
    def most_capacity(self) -> int:
        """Bytes of the device on which an order must run."""
        return int(self.capacity_bytes * MOST_CAPACITY) + self.spare_bytes

    @cached_property
    def growth(self) -> Growth:
        """How the original order makes plain segments grow."""
        return Growth.of(self.task.live_ranges, self.task.problem.original_order)

    def gates(self) -> tuple[AllocatorGate, AllocatorGate]:
        """For two runs: what the allocator may reserve rises as in the original order; or is there from the start."""
        live_ranges, growth = self.task.live_ranges, self.growth
        spare_bytes = int(growth.total_bytes * SPARE) + self.spare_bytes
        return (
            AllocatorGate(live_ranges, growth.inputs_bytes + spare_bytes, growth.by_node),
            AllocatorGate(live_ranges, growth.total_bytes + self.spare_bytes, {}),
        )

    def repaired(self, found: Candidate, rooms: int) -> Candidate:
        """The candidate mended where it breaks something, as far as that can be had, by so many rooms for a request."""
        spare_bytes = int(self.growth.total_bytes * (MOST_RESERVED - 1)) + self.spare_bytes
        return repaired(self.task, found, self.growth, spare_bytes, self.most_capacity, rooms)


def within_reserve(reserve: Reserve, reference: Reference, best: Candidate) -> Candidate:
    """The phase: the best order, or one near it that an allocator can hold.

    Args:
        reserve: What the order may need.
        reference: The order that runs start from.
        best: The best order behind all other phases.
    """
    breaks = reserve.overdraft(best.order)
    if breaks == NOTHING:
        return best
    held, broken = _held(reserve, reference, best, breaks)
    limit = reserve.task.limit_after(best)
    for farthest in SHIFTS:
        moved = shift(reserve.task, held, limit, farthest)
        if moved.step_us <= held.step_us:
            after = reserve.overdraft(moved.order)
            if after == NOTHING or after < broken:
                return moved
    return held


def _held(reserve: Reserve, reference: Reference, best: Candidate, breaks: Overdraft) -> tuple[Candidate, Overdraft]:
    """The shortest order that breaks nothing; where there is none, the one near the best that breaks least."""
    task, work = reserve.task, best.work
    tried, seen = [(breaks, best)], {best.order}
    if best.unshifted is not None and best.unshifted not in seen:
        tried.append((reserve.overdraft(best.unshifted), task.remeasured(best, best.unshifted)))
        seen.add(best.unshifted)
    effort = task.options.effort
    for run in islice(_runs(reserve, reference), RUNS * effort):
        if _shortest_held(tried) <= best.step_us * CLOSE:
            break
        found = run()
        work = work.plus(found if isinstance(found, Work) else found.work)
        if not isinstance(found, Work) and found.order not in seen:
            seen.add(found.order)
            tried.append((reserve.overdraft(found.order), found))
    for found in _nearest(reserve, tried, best)[: int(REPAIRS * effort)]:
        if _shortest_held(tried) <= best.step_us * EQUAL:
            break
        tried += _repairs(reserve, found, best.step_us)
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
    """What is worth mending: shorter than what can be held already, and not far from the best.

    First what breaks least, to a hundredth of what may be reserved; of those, the shortest, to a thousandth.
    """

    def key(pair: tuple[Overdraft, Candidate]) -> tuple[int, ...]:
        broken, found = pair
        hundredths = 100 * broken.over_bytes // max(reserve.reserved_bytes, 1)
        thousandths = int(1000 * found.step_us / best.step_us)
        return broken.out_of_memory, broken.retries, hundredths, thousandths, broken.over_bytes

    most_us = min(best.step_us * MENDED, _shortest_held(tried))
    worth = [pair for pair in tried if pair[0] != NOTHING and pair[1].step_us < most_us]
    return [found for _, found in sorted(worth, key=key)]


def _runs(reserve: Reserve, reference: Reference) -> Iterator[Callable[[], Candidate | Work]]:
    """Runs beside an allocator, policy by policy."""
    task = reserve.task
    compute_us, stream_us = busy_us(task.problem)
    original_us = task.measured(task.problem.original_order).step_us
    for policy in POLICIES if compute_us >= stream_us else _in_turn(NETWORK_BINDS, POLICIES):
        for gate in reserve.gates():
            yield partial(list_schedule, reference, task.limit, policy, task.pairs, original_us, gate)


def _in_turn(first: Sequence[Policy], second: Sequence[Policy]) -> Iterator[Policy]:
    """One of each, until there are none."""
    for pair in zip_longest(first, second):
        yield from (policy for policy in pair if policy is not None)
