"""What the original order needs of the caching allocator, what another order breaks of it, and a gate for runs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from overlap_sched.options import headroom_bytes
from overlap_sched.peak_memory.allocator.reserved import AllocatorDevice, Full, Requests, requests_of, where_full
from overlap_sched.peak_memory.allocator.trail import Lacking, Trail
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, AllocatorSettings
from overlap_sched.scheduler.allocator_gate import AllocatorGate
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.repair import repaired
from overlap_sched.scheduler.room import Growth

MOST_RESERVED, MOST_CAPACITY, MOST_RETRIES = 1.03, 1.002, 1
"""See :mod:`overlap_sched.scheduler.reserve`; parts of what the original order needs."""
SMALL_BYTES, SEGMENTS_BYTES = 1024 * MIB, 40 * MIB
"""What reserves less than the first may reserve the second more."""
SLIGHT, SLIGHT_BYTES, SLIGHT_RETRIES = 0.01, 64 * MIB, 2
"""What lacks no more than this part of what the original order reserves, nor more than so many bytes, and has no more
than so many retries above those it may have, may be taken."""


class Overdraft(NamedTuple):
    """What an order breaks, worst first; all zero: nothing.

    ``over_bytes``: what it reserves, or lacks in the capacity in which it must run, above what it may; the larger.
    ``lacks_bytes``: the second.
    """

    out_of_memory: bool
    retries: int
    over_bytes: int
    lacks_bytes: int


NOTHING = Overdraft(False, 0, 0, 0)


Tried = tuple[Overdraft, Candidate]
"""An order, and what it breaks."""


def held_us(tried: Iterable[Tried]) -> float:
    """The shortest step in microseconds of what breaks nothing; infinite where all do."""
    return min((found.step_us for broken, found in tried if broken == NOTHING), default=math.inf)


@dataclass(frozen=True)
class Reserve:
    """What the original order needs of the allocator.

    Attributes:
        task: Whose orders are looked at. settings: Of the allocator.
        reserved_bytes: Reserved without a limit. capacity_bytes: the smallest that suffices. spare_bytes: on top.
        limits_growth: Must an order also reserve little more where there is no limit? Else it must run where the
            original order does, and no more.
    """

    task: Task
    settings: AllocatorSettings
    reserved_bytes: int
    capacity_bytes: int
    spare_bytes: int
    limits_growth: bool = True

    @classmethod
    def of(cls, task: Task, settings: AllocatorSettings) -> "Reserve":
        """Return the reserve of a task's original order."""
        requests = requests_of(task.live_ranges, task.problem.original_order)
        reserved = requests.replayed(settings).peak_reserved_bytes
        spare_bytes = headroom_bytes(task.options.headroom, task.base_bytes)
        spare_bytes += SEGMENTS_BYTES if reserved < SMALL_BYTES else 0
        return cls(task, settings, reserved, requests.smallest_capacity(settings, reserved), spare_bytes)

    def rewritten(self, task: Task) -> "Reserve":
        """For orders of what the problem has become: they may need what the problem as it was needs."""
        return replace(self, task=task)

    def overdraft(self, order: Order) -> Overdraft:
        """Return what a valid order breaks."""
        return self.looked_at(order)[0]

    def looked_at(self, order: Order) -> tuple[Overdraft, Sequence[AllocatorDevice]]:
        """The same, and where it runs by luck alone: a larger device on which it does not."""
        requests, (smallest, original, *largest) = requests_of(self.task.live_ranges, order), self.devices
        full = dict(where_full(requests, self.devices, self.settings))
        lacks_bytes = _lent_bytes(requests, full.get(smallest))
        over_bytes = max((_lent_bytes(requests, full.get(device)) for device in largest), default=0)
        retries, unlucky = 0, list[AllocatorDevice]()
        if smallest in full and not lacks_bytes:  # more memory may be worse: it must not run there by luck alone
            reserved = requests.replayed(self.settings).peak_reserved_bytes
            fails_in, runs_in = requests.bisected(self.settings, reserved, smallest.capacity)
            if runs_in > smallest.capacity:
                lacks_bytes, unlucky = runs_in - smallest.capacity, [AllocatorDevice(fails_in)]
        over_bytes = max(lacks_bytes, over_bytes)
        if original in full:
            full[original].replay.allocator.most_retries = NO_LIMIT
            if not full[original].go_on(requests):
                return Overdraft(True, 0, over_bytes, lacks_bytes), unlucky
            retries = full[original].replay.allocator.retries
        return Overdraft(False, max(retries - MOST_RETRIES, 0), over_bytes, lacks_bytes), unlucky

    def runs(self, broken: Overdraft) -> bool:
        """Does an order that breaks this run where the original order does, or with a few MiB or retries more?"""
        return broken.lacks_bytes <= self._slight_bytes and broken.retries <= SLIGHT_RETRIES

    def no_worse(self, broken: Overdraft, most: Overdraft) -> bool:
        """Does an order break no more than another one, and run where that runs?"""
        return broken <= most and (self.runs(broken) or not self.runs(most))

    @property
    def lenient(self) -> "Reserve":
        """For orders that run where the original order does, or with those few MiB more, whatever they reserve."""
        return replace(self, spare_bytes=self.spare_bytes + self._slight_bytes, limits_growth=False)

    @property
    def _slight_bytes(self) -> int:
        return min(int(self.reserved_bytes * SLIGHT), SLIGHT_BYTES)

    def lacking(self, order: Order) -> Lacking:
        """Return what a valid order lacks on all devices together."""
        return self.trail(order).lacking_of(order)

    def trail(self, order: Order, more: Sequence[AllocatorDevice] = ()) -> Trail:
        """An order's replay on all devices, and more of them, for others that are like it."""
        return Trail(self.task.live_ranges, order, [*self.devices, *more], self.settings)

    @property
    def most_capacity(self) -> int:
        """Bytes of the device on which an order must run."""
        return int(self.capacity_bytes * MOST_CAPACITY) + self.spare_bytes

    @cached_property
    def growth(self) -> Growth:
        """How the original order makes plain segments grow."""
        return Growth.of(self.task.live_ranges, self.task.problem.original_order)

    @property
    def devices(self) -> tuple[AllocatorDevice, ...]:
        """The devices that an order must run on to break nothing."""
        reserved = self.reserved_bytes
        runs = AllocatorDevice(self.most_capacity), AllocatorDevice(reserved + self.spare_bytes, MOST_RETRIES)
        if not self.limits_growth:
            return runs
        return (*runs, AllocatorDevice(int(reserved * MOST_RESERVED) + self.spare_bytes, 0))

    def gate(self) -> AllocatorGate:
        """For a run: the allocator may reserve as much as for the original order."""
        return AllocatorGate(self.task.live_ranges, self.growth.total_bytes + self.spare_bytes)

    @property
    def _spare_bytes(self) -> int:
        return int(self.growth.total_bytes * (MOST_RESERVED - 1)) + self.spare_bytes

    def repaired(self, found: Candidate, rooms: int) -> Candidate:
        """The candidate mended where it breaks something, as far as that can be had, by so many rooms for a request."""
        growth = self.growth if self.limits_growth else None
        return repaired(self.task, found, growth, self._spare_bytes, self.most_capacity, rooms)


def _lent_bytes(requests: Requests, full: Full | None) -> int:
    """Count what must be lent on a device that is full for the order to come to its end; ``None``: it is not full."""
    if full is None:
        return 0
    lender = full.replay.allocator
    lender.most_lent_bytes = NO_LIMIT
    full.go_on(requests)
    return lender.lent_bytes


def holds_as_well(reserve: Reserve | None, order: Order) -> Callable[[Order], bool]:
    """Return a test of orders: does the allocator hold one as well as this one? Without a reserve it holds any.

    What this one breaks is looked up when it is first asked for: mostly it never is.
    """
    if reserve is None:
        return lambda other: True
    most = cache(lambda: reserve.overdraft(order))
    return lambda other: reserve.no_worse(reserve.overdraft(other), most())
