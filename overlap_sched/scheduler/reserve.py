"""An order that torch's caching allocator can hold in what the original order needs.

Live bytes within the budget are not enough: another order leaves other holes. What the original order needs is replayed
once (:mod:`overlap_sched.peak_memory.reserved`); the order found must, in plain figures:

    reserve at most 3 % more on a device without a limit,
    run, with at most one retry, in as much as the original reserves there without any,
    run in the smallest capacity in which the original runs, plus 0.2 %;

each plus the headroom. Where it does not: the same order without its shift; then runs beside an allocator that admits
no more than the original reserves (:mod:`overlap_sched.scheduler.allocator_gate`), mended where they still fail
(:mod:`overlap_sched.scheduler.repair`), the shortest that can be held; then shifts that go less far. Where nothing can
be held, what breaks least of this within one percent of the step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.options import headroom_bytes
from overlap_sched.peak_memory.reserved import requests_of
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import AllocatorSettings, allocator_named
from overlap_sched.scheduler.allocator_gate import AllocatorGate
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import FAR, NEAR, NETWORK_BINDS, NEXT, Policy
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import repaired
from overlap_sched.scheduler.result import Work
from overlap_sched.scheduler.room import Growth
from overlap_sched.scheduler.shift import shift

MOST_RESERVED, MOST_CAPACITY, MOST_RETRIES = 1.03, 1.002, 1
"""As above; parts of what the original order needs."""
CLOSE, WORTH = 1.005, 1.01
"""A step within the first part of the best is not improved on; within the second it is given for memory that fits."""
MENDED, MOST_MENDED = 1.03, 12
"""Orders whose step is within this part of the best are mended, the first so many that need it: it takes its time."""
SHIFTS = (400, 100, 25, 6)
"""Positions that a shift goes at most, in turn."""
SPARE = 0.01
"""A run may make the allocator grow ahead of the original order by so much of what that reserves."""

POLICIES = tuple(
    Policy(lead, slack, window)
    for slack, window in ((0.12, FAR), (0.0, NEAR), (-0.2, NEXT), (0.12, NEAR), (-0.03, NEAR))
    for lead in (0.005, 0.02, 0.0)
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
        task: Whose. settings: Of the allocator.
        reserved_bytes: Reserved without a limit. capacity_bytes: the smallest that suffices. headroom_bytes: on top.
    """

    task: Task
    settings: AllocatorSettings
    reserved_bytes: int
    capacity_bytes: int
    headroom_bytes: int

    @classmethod
    def of(cls, task: Task, settings: AllocatorSettings) -> "Reserve":
        """Of a task's original order."""
        requests = requests_of(task.live_ranges, task.problem.original_order)
        reserved = requests.replayed(settings).peak_reserved_bytes
        headroom = headroom_bytes(task.options.headroom, task.base_bytes)
        return cls(task, settings, reserved, requests.smallest_capacity(settings, reserved), headroom)

    def overdraft(self, order: Order) -> Overdraft:
        """What a valid order breaks."""
        requests = requests_of(self.task.live_ranges, order)
        reserved = requests.replayed(self.settings).peak_reserved_bytes
        over_bytes = max(reserved - int(self.reserved_bytes * MOST_RESERVED) - self.headroom_bytes, 0)
        retries = requests.retries(self.reserved_bytes + self.headroom_bytes, self.settings)
        if not requests.fits(self.most_capacity, self.settings):
            needed = requests.smallest_capacity(self.settings, reserved)
            over_bytes = max(over_bytes, needed - self.most_capacity, 1)
        return Overdraft(retries is None, max((retries or 0) - MOST_RETRIES, 0), over_bytes)

    @property
    def most_capacity(self) -> int:
        """Bytes of the device on which an order must run."""
        return int(self.capacity_bytes * MOST_CAPACITY) + self.headroom_bytes

    @cached_property
    def growth(self) -> Growth:
        """How the original order makes plain segments grow."""
        return Growth.of(self.task.live_ranges, self.task.problem.original_order)

    def gates(self) -> tuple[AllocatorGate, AllocatorGate]:
        """For two runs: what the allocator may reserve rises as in the original order; or is there from the start."""
        live_ranges, growth = self.task.live_ranges, self.growth
        spare_bytes = int(growth.total_bytes * SPARE) + self.headroom_bytes
        return (
            AllocatorGate(live_ranges, growth.inputs_bytes + spare_bytes, growth.by_node),
            AllocatorGate(live_ranges, growth.total_bytes + self.headroom_bytes, {}),
        )

    def repaired(self, found: Candidate) -> Candidate:
        """The candidate mended where it breaks something, as far as that can be had."""
        spare_bytes = int(self.growth.total_bytes * (MOST_RESERVED - 1)) + self.headroom_bytes
        return repaired(self.task, found, self.growth, spare_bytes, self.most_capacity)


def within_reserve(
    task: Task, reference: Reference, raw: Candidate, best: Candidate, limit: npt.NDArray[np.int64]
) -> Candidate:
    """The phase: the best order, or one near it that the allocator asked for can hold.

    Args:
        task: What is asked for.
        reference: The order that runs start from.
        raw: The best order before it was shifted.
        best: The best order behind all other phases.
        limit: Budget in bytes of a shift, a scalar or one value per position.
    """
    settings = allocator_named(task.options.allocator)
    if settings is None:
        return best
    reserve = Reserve.of(task, settings)
    breaks = reserve.overdraft(best.order)
    if breaks == NOTHING:
        return best
    held, broken = _held(reserve, reference, raw, best, breaks)
    for farthest in SHIFTS:
        moved = shift(task, held, limit, farthest)
        if moved.step_us <= held.step_us:
            after = reserve.overdraft(moved.order)
            if after == NOTHING or after < broken:
                return moved
    return held


def _held(
    reserve: Reserve, reference: Reference, raw: Candidate, best: Candidate, breaks: Overdraft
) -> tuple[Candidate, Overdraft]:
    """The shortest order that breaks nothing; where there is none, the one near the best that breaks least."""
    task, work = reserve.task, best.work
    original = task.measured(task.problem.original_order)
    tried = [(breaks, best), (reserve.overdraft(raw.order), raw)]
    seen, mended = {best.order, raw.order}, 0
    for run in () if _held_well(tried, best) else _runs(reserve, reference, original.step_us):
        work = work.plus(run if isinstance(run, Work) else run.work)
        if isinstance(run, Work) or run.order in seen:
            continue
        seen.add(run.order)
        broken = reserve.overdraft(run.order)
        tried.append((broken, run))
        if broken != NOTHING and run.step_us <= best.step_us * MENDED and mended < MOST_MENDED:
            mended += 1
            repaired_run = reserve.repaired(run)
            tried.append((reserve.overdraft(repaired_run.order), repaired_run))
        if _held_well(tried, best):
            break
    kept = [(broken, found) for broken, found in tried if broken == NOTHING]
    if kept:
        broken, found = min(kept, key=lambda pair: pair[1].step_us)
    else:
        near = [(broken, found) for broken, found in tried if found.step_us <= best.step_us * WORTH]
        broken, found = min(near, key=lambda pair: (pair[0], pair[1].step_us))
    return replace(found, work=work), broken


def _held_well(tried: Sequence[tuple[Overdraft, Candidate]], best: Candidate) -> bool:
    """Is there an order that breaks nothing, about as short as the best?"""
    return any(broken == NOTHING and found.step_us <= best.step_us * CLOSE for broken, found in tried)


def _runs(reserve: Reserve, reference: Reference, beat_us: float) -> Iterator[Candidate | Work]:
    """Runs beside an allocator, policy by policy."""
    task = reserve.task
    compute_us, stream_us = busy_us(task.problem)
    for policy in POLICIES if compute_us >= stream_us else (*NETWORK_BINDS, *POLICIES):
        for gate in reserve.gates():
            yield list_schedule(reference, task.limit, policy, task.pairs, beat_us, gate)
