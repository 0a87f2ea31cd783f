"""A frontier as data: orders of which none is dominated, and the questions that users ask of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from overlap_sched.errors import UnreachableError
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.task import SAME_STEP


class StepAndPeak(Protocol):
    """What has a step and a peak: an order, a plan, a cut."""

    @property
    def step_us(self) -> float:
        """How long it takes."""

    @property
    def peak_bytes(self) -> int:
        """The most that is live."""


Found = TypeVar("Found", bound=StepAndPeak)


def undominated(found: Iterable[Found]) -> list[Found]:
    """Those than which no other one is better in both: by ascending peak and descending step."""
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: (one.peak_bytes, one.step_us)):
        if not kept or one.step_us < kept[-1].step_us * (1 - SAME_STEP):
            kept.append(one)
    return kept


@dataclass(frozen=True)
class Point:
    """One order: what it needs, and how long it takes."""

    peak_bytes: int
    step_us: float
    exposed_us: float
    order: Order


@dataclass(frozen=True)
class Frontier:
    """Orders of one problem, none of which is dominated by another in peak and step.

    Attributes:
        original: The original order, on the frontier or not.
        points: By ascending peak and descending step; at least one.
        bound_us: No order's step is shorter, whatever memory it is given.
        floor_bytes: No order's peak is lower.
        budgets: How many were tried.
    """

    problem: Problem
    original: Point
    points: tuple[Point, ...]
    bound_us: float
    floor_bytes: int
    budgets: int

    def within(self, limit_bytes: int) -> Point:
        """The shortest step found that needs no more than so much.

        Raises:
            UnreachableError: Every order found needs more.
        """
        fitting = [point for point in self.points if point.peak_bytes <= limit_bytes]
        if fitting:
            return fitting[-1]
        lowest = self.points[0].peak_bytes
        if limit_bytes < self.floor_bytes:
            why = f"no order can: some step has at least {bytes_text(self.floor_bytes)} live"
        else:
            why = f"the lowest peak found is {bytes_text(lowest)}, {bytes_text(lowest - limit_bytes)} above it"
        raise UnreachableError(
            f"{self.problem.name!r} does not fit into {bytes_text(limit_bytes)}: {why}. "
            "Recompute more, shard over more ranks, or give it more memory."
        )

    def no_longer_than(self, target_us: float) -> Point:
        """The lowest peak found at which the step is no longer than that.

        Raises:
            UnreachableError: Every order found takes longer.
        """
        fast = [point for point in self.points if point.step_us <= target_us]
        if fast:
            return fast[0]
        if target_us < self.bound_us:
            why = f"no order can be shorter than {time_text(self.bound_us)}, whatever memory it is given"
        else:
            shortest = self.points[-1]
            at = bytes_text(shortest.peak_bytes)
            why = f"the shortest step found takes {time_text(shortest.step_us)}, with a peak of {at}"
        raise UnreachableError(
            f"{self.problem.name!r} cannot be done in {time_text(target_us)}: {why}. "
            "Ask for a longer step, or mend what it waits for: a faster network, less to send."
        )


def bytes_text(count: int) -> str:
    """Bytes for people: ``1.500 GiB``, ``18.0 MiB``."""
    return f"{count / 2**30:,.3f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def time_text(us: float) -> str:
    """A time for people: ``1.5 ms``, ``120.0 us``."""
    return f"{us / 1e3:,.1f} ms" if us >= 1e3 else f"{us:,.1f} us"
