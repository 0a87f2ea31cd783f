"""What stages work on: the task, which stays, and the best order so far: each stage takes one and gives one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import PinError
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import MAX_TOTAL_BYTES, Order, Problem
from overlap_sched.problem.pins import pin_pairs
from overlap_sched.problem.precedence import Pair, by_key, launch_pairs, positions
from overlap_sched.scheduler.admission import Refusal
from overlap_sched.scheduler.result import NO_WORK, Reason, Work
from overlap_sched.scheduler.step_time import StepTimes

SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding, and the lower peak decides."""


@dataclass(frozen=True)
class Candidate:
    """A valid order within the budget.

    Attributes:
        order: Node ids.
        step_us, peak_bytes: Its step time and its peak: true after every stage.
        reasons: Per collective, why it was launched where it was; empty: the order was not made by us.
        refusals: Per collective that the budget ever refused: the first time.
        work: What it took to come to it.
    """

    order: Order
    step_us: float
    peak_bytes: int
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    work: Work = NO_WORK

    def beats(self, other: "Candidate") -> bool:
        """Is its step shorter, or as long with a lower peak?"""
        if self.step_us < other.step_us * (1 - SAME_STEP):
            return True
        return self.step_us <= other.step_us * (1 + SAME_STEP) and self.peak_bytes < other.peak_bytes

    def or_better(self, found: "Candidate", work: Work) -> "Candidate":
        """The better one of both, after the work that finding the other took."""
        return replace(found if found.beats(self) else self, work=self.work.plus(work))

    def after(self, work: Work) -> "Candidate":
        """The same, which has taken more work by now."""
        return replace(self, work=self.work.plus(work))


class SchedulerRun(NamedTuple):
    """What a run of the list scheduler took, and what it made; ``None``: it was given up."""

    work: Work
    made: Candidate | None = None


@dataclass(frozen=True)
class Task:
    """What is asked for.

    Attributes:
        problem: What to schedule.
        options: How.
        base_bytes: The peak that headroom is counted from.
        like: An order whose launch sequence all others keep; ``None``: they keep what the options say.
    """

    problem: Problem
    options: Options
    base_bytes: int
    like: Order | None = None

    @cached_property
    def live_ranges(self) -> LiveRanges:
        """The live ranges that the memory of all orders shares."""
        return LiveRanges(self.problem)

    @cached_property
    def step_times(self) -> StepTimes:
        """How long orders take."""
        return StepTimes(self.problem)

    @cached_property
    def limit(self) -> npt.NDArray[np.int64]:
        """The budget in bytes: one value, or one per position (``options.budget``)."""
        headroom = min(headroom_bytes(self.options.headroom, self.base_bytes), MAX_TOTAL_BYTES)
        if self.options.budget == "profile":
            return self.live_ranges.profile(self.problem.original_order) + headroom
        return np.array(self.base_bytes + headroom, dtype=np.int64)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Nodes that must run before others: launches that keep their order, and what keeps pins."""
        if self.like is not None:
            return (*launch_pairs(self.problem, self.like, "all"), *self.pins)
        kept = self.options.preserve_collective_order
        return (*launch_pairs(self.problem, self.problem.original_order, kept), *self.pins)

    @cached_property
    def pins(self) -> tuple[Pair, ...]:
        """Those of :attr:`pairs` that keep pins."""
        return pin_pairs(self.problem, self.options.pins)

    @cached_property
    def nearest(self) -> Order:
        """The original order, or the nearest that keeps all :attr:`pairs`; it may be above the budget.

        Raises:
            PinError: There is none.
        """
        original = self.problem.original_order
        found = original if self.keeps(original) else by_key(self.problem, self.pairs, original)
        if found is None:
            raise PinError(
                f"pins contradict preserve_collective_order={self.options.preserve_collective_order!r}: no order keeps "
                "both. Leave one of the two out."
            )
        return found

    def limit_after(self, best: Candidate) -> npt.NDArray[np.int64]:
        """The budget of what only polishes an order: no more than its peak, or that of the base, needs anyway."""
        return np.minimum(self.limit, max(best.peak_bytes, self.base_bytes))

    def measured(self, order: Order) -> Candidate:
        """A valid order as it is."""
        return Candidate(order, self.step_times.of(order), int(self.live_ranges.profile(order).max()))

    def remeasured(self, candidate: Candidate, order: Order) -> Candidate:
        """The candidate with its nodes in another valid order."""
        moved = self.measured(order)
        return replace(candidate, order=moved.order, step_us=moved.step_us, peak_bytes=moved.peak_bytes)

    @property
    def may_stay(self) -> bool:
        """May the original order be taken? Another launch sequence may be asked for, or pins that it breaks."""
        original = self.problem.original_order
        return self.like is None and self.keeps(original) and self.within_budget(original)

    def keeps(self, order: Order) -> bool:
        """Does a valid order keep all :attr:`pairs`?"""
        if not self.pairs:
            return True
        position = positions(order)
        return all(position[u] < position[v] for u, v in self.pairs)

    def within_budget(self, order: Order) -> bool:
        """Does a valid order keep to the budget?"""
        return bool((self.live_ranges.profile(order) <= self.limit).all())
