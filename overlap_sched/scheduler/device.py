r"""An order that runs on a device of so many bytes (``Options.memory_limit``).

The best order by live bytes may not: another order leaves other holes between its blocks. Less in flight leaves fewer,
so the scheduler runs again within tighter budgets, and the shortest order that runs is taken::

    bytes  |- - - - - - - - - peak - - - - - - - -
           |   ____________________________          live + part * (peak - live)
           |__/      ________              \____
           |  ______/        \_________________      live in the order that runs start from
           +-------------------------------------> position

Where none does: the original order, if it runs there; else the best, and what it is short.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from overlap_sched.options import replayed_allocator
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.problem.sizes import AllocatorSettings, size_bytes
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import FAR_AHEAD, WHILE_STALLED, Policy
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.stage import Context

PARTS = (0.85, 0.55, 0.15, 0.05)
"""Tighter budgets, as parts of the way from what is live in the reference order at each place to the budget."""
POLICIES = (WHILE_STALLED, FAR_AHEAD)
"""Of runs within each; of eight policies the two that end shortest on the graphs of the benchmark."""


@dataclass(frozen=True)
class DeviceLimit:
    """What an order must run in.

    Attributes:
        limit_bytes: Of the device. settings: of its allocator; ``None``: live bytes alone count.
    """

    limit_bytes: int
    settings: AllocatorSettings | None

    @classmethod
    def of(cls, task: Task) -> "DeviceLimit | None":
        """The device that ``Options.memory_limit`` names for a task; ``None``: it names none."""
        limit, settings = task.options.memory_limit, replayed_allocator(task.options)
        if limit is None:
            return None
        percent = isinstance(limit, str) and "%" in limit
        needed = needed_bytes(task.live_ranges, task.problem.original_order, settings) if percent else 0
        return cls(size_bytes(limit, needed) or 0, settings)

    def runs(self, live_ranges: LiveRanges, order: Order) -> bool:
        """Does a valid order run on it?"""
        requests = requests_of(live_ranges, order)
        fits = requests.live_bytes <= self.limit_bytes
        return fits and (self.settings is None or requests.fits(self.limit_bytes, self.settings))

    def short_bytes(self, live_ranges: LiveRanges, order: Order) -> int:
        """How many bytes it lacks for a valid order; 0: the order runs."""
        if self.runs(live_ranges, order):
            return 0
        return needed_bytes(live_ranges, order, self.settings, self.limit_bytes) - self.limit_bytes


def needed_bytes(live_ranges: LiveRanges, order: Order, settings: AllocatorSettings | None, fails_in: int = 0) -> int:
    """The smallest device on which a valid order runs; by live bytes alone without settings."""
    requests = requests_of(live_ranges, order)
    return requests.live_bytes if settings is None else requests.smallest_capacity(settings, fails_in)


def best_that_runs(device: DeviceLimit, context: Context, original: Candidate, best: Candidate) -> Candidate:
    """Return the shortest order found that runs on a device, at least as short as the original one."""
    task, reference = context.task, context.reference

    def runs(found: Candidate) -> bool:
        return device.runs(task.live_ranges, found.order)

    if runs(best):
        return best
    shortest, work = original if task.may_stay and runs(original) else None, best.work
    for limit, policy in _tighter(task, reference) if task.options.effort else ():
        run = list_schedule(reference, limit, policy, task.pairs, (shortest or original).step_us)
        work = work.plus(run.work)
        if run.made is not None and (shortest is None or run.made.beats(shortest)) and runs(run.made):
            shortest = run.made
    return replace(shortest or best, work=work)


def _tighter(task: Task, reference: Reference) -> Iterator[tuple[npt.NDArray[np.int64], Policy]]:
    """Tighter and tighter budgets, each with the policies of runs within it."""
    live = np.minimum(reference.profile, task.limit)
    for part in PARTS:
        limit = (live + part * (task.limit - live)).astype(np.int64)
        yield from ((limit, policy) for policy in POLICIES)
