"""What another GiB buys: the shortest step found for each peak, from the lowest peak to memory without limit.

Every order found counts at its own peak, whatever budget it was made for; what another beats in both is left out.
So along the frontier more memory is never a longer step::

    step  |x  <- the order with the lowest peak
          |  x   x <- the original order: more memory and a longer step than its neighbour: not on the frontier
          |    x
          |        x           x <- without limit
          +---------------------- peak

Budgets are tried where the frontier is known least: half way between two neighbours that differ most. How many is
counted, so the same problem gives the same frontier everywhere.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from overlap_sched.analysis.relabel import as_listed_before, relisted
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.options import Options
from overlap_sched.peak_memory.best import best_order
from overlap_sched.problem import MAX_TOTAL_BYTES, Order, Problem
from overlap_sched.scheduler.pipeline import schedule

BUDGETS = 12
"""How many budgets are tried, unless said otherwise."""
SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding."""
CLOSE = 0.01
"""A target is met with the least memory up to this part of the range of peaks."""


@dataclass(frozen=True)
class Point:
    """One order: what it needs, and how long it takes."""

    peak_bytes: int
    step_us: float
    exposed_us: float
    order: Order


@dataclass(frozen=True)
class Frontier:
    """Orders of one problem, none of which is beaten by another in both peak and step.

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
            why = f"no order can: some step has at least {_bytes(self.floor_bytes)} live"
        else:
            why = f"the lowest peak found is {_bytes(lowest)}, {_bytes(lowest - limit_bytes)} above it"
        raise UnreachableError(
            f"{self.problem.name!r} does not fit into {_bytes(limit_bytes)}: {why}. "
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
            why = f"no order can be shorter than {_ms(self.bound_us)}, whatever memory it is given"
        else:
            shortest = self.points[-1]
            why = f"the shortest step found takes {_ms(shortest.step_us)}, with a peak of {_bytes(shortest.peak_bytes)}"
        raise UnreachableError(
            f"{self.problem.name!r} cannot be done in {_ms(target_us)}: {why}. "
            "Ask for a longer step, or mend what it waits for: a faster network, less to send."
        )


def frontier(
    problem: Problem,
    options: Options | None = None,
    budgets: int = BUDGETS,
    limit_bytes: int | None = None,
    target_us: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Frontier:
    """Find the frontier, and look closer where a point of it is asked for.

    Args:
        problem: What to order.
        options: How; headroom and budget are the frontier's own.
        budgets: How many to try, three at least.
        limit_bytes: Try this budget too.
        target_us: Look for the lowest peak at which the step is no longer than that.
        tell: Hears what is being done.

    Raises:
        OptionsError: ``budgets`` is below three.
    """
    if budgets < 3:
        raise OptionsError(f"budgets is {budgets}; it is 3 or more: the lowest, the original and no limit.")
    search = _Search(problem, options or Options(), tell)
    search.at(search.lowest_bytes)
    search.at(search.original.peak_bytes)
    search.at(MAX_TOTAL_BYTES)
    while search.tried < budgets and (gap := search.widest_gap()) is not None:
        search.at(gap)
    if limit_bytes is not None and limit_bytes >= search.lowest_bytes:
        search.at(limit_bytes)
    if target_us is not None:
        search.close_in(target_us)
    points = tuple(search.points)
    floor = min(search.floor_bytes, points[0].peak_bytes)
    return Frontier(problem, search.original, points, lower_bound_us(problem), floor, search.tried)


class _Search:
    """The orders found so far, and the budgets tried."""

    def __init__(self, problem: Problem, options: Options, tell: Callable[[str], None]) -> None:
        self.problem, self.tell = problem, tell
        self.options = replace(options, budget="peak", memory_model=problem.memory_model)
        self.points: list[Point] = []  # the frontier so far
        self.budgets: list[int] = []  # tried, ascending
        self.original = self._found(problem.original_order)
        tell("looking for the lowest peak")
        low = best_order(problem, options.preserve_collective_order)
        self.floor_bytes = low.bound_bytes
        self.listings: list[tuple[Problem, Order, int]] = [(problem, problem.original_order, self.original.peak_bytes)]
        if low.peak_bytes < self.original.peak_bytes:
            self._found(low.order)
            self.listings.append((relisted(problem, low.order), low.order, low.peak_bytes))

    @property
    def lowest_bytes(self) -> int:
        """The lowest peak found."""
        return self.points[0].peak_bytes

    @property
    def tried(self) -> int:
        """How many budgets."""
        return len(self.budgets)

    def at(self, budget_bytes: int) -> None:
        """Schedule within a budget, from each listing that fits into it."""
        if budget_bytes in self.budgets:
            return
        bisect.insort(self.budgets, budget_bytes)
        limit = "no limit" if budget_bytes == MAX_TOTAL_BYTES else _bytes(budget_bytes)
        self.tell(f"budget {self.tried}: {limit}")
        for problem, order, peak in self.listings:
            if peak <= budget_bytes:
                result = schedule(problem, replace(self.options, headroom=budget_bytes - peak))
                self._found(as_listed_before(result.order, order))

    def _found(self, order: Order) -> Point:
        """Count an order at its own peak; keep the frontier one."""
        timeline, (peak, _) = replay(self.problem, order), peak_memory(self.problem, order)
        new = Point(peak, timeline.step_us, timeline.exposed_us, order)
        kept: list[Point] = []
        for point in sorted([*self.points, new], key=lambda point: (point.peak_bytes, point.step_us)):
            if not kept or point.step_us < kept[-1].step_us * (1 - SAME_STEP):
                kept.append(point)
        self.points = kept
        return new

    def widest_gap(self) -> int | None:
        """A budget between two neighbours of the frontier between which most is unknown; ``None``: nothing is.

        Between two points the step is between theirs: what is unknown is the rectangle. A budget that was tried
        leaves only what is to its right.
        """
        first, last = self.points[0], self.points[-1]
        all_of_it = (last.peak_bytes - first.peak_bytes) * (first.step_us - last.step_us)
        widest, where = all_of_it / 1000, None
        for left, right in zip(self.points, self.points[1:], strict=False):
            tried = self.budgets[bisect.bisect_left(self.budgets, right.peak_bytes) - 1]  # the last below the right one
            begin = max(left.peak_bytes, tried)
            unknown = (right.peak_bytes - begin) * (left.step_us - right.step_us)
            if unknown > widest and right.peak_bytes - begin > 1:
                widest, where = unknown, (begin + right.peak_bytes) // 2
        return where

    def close_in(self, target_us: float) -> None:
        """Halve the budgets between the last point that is too slow and the first that is not."""
        near = CLOSE * (self.points[-1].peak_bytes - self.points[0].peak_bytes)
        while self.points[-1].step_us <= target_us < self.points[0].step_us:
            k = next(k for k, point in enumerate(self.points) if point.step_us <= target_us)
            enough = self.points[k].peak_bytes
            too_low = self.points[k - 1].peak_bytes
            too_low = max([too_low, *(budget for budget in self.budgets if budget < enough)])
            if enough - too_low <= max(near, 1):
                return
            self.at((too_low + enough) // 2)


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.3f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _ms(us: float) -> str:
    return f"{us / 1e3:,.1f} ms" if us >= 1e3 else f"{us:,.1f} us"
