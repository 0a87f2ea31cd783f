"""What another GiB buys: the shortest step found for each peak, from the lowest peak to memory without limit.

Every order found counts at its own peak, whatever budget it was made for; dominated orders are dropped.
So along the frontier more memory is never a longer step::

    step  |x  <- the order with the lowest peak
          |  x   x <- the original order: more memory and a longer step than its neighbour: not on the frontier
          |    x
          |        x           x <- without limit
          +---------------------- peak

Live bytes alone count: what the allocator reserves is no axis of this curve, and would depend on the order that each
run starts from. Budgets are tried where the frontier is known least: half way between two neighbours that differ most.
The scheduler reaches only orders of which every beginning fits the budget when the rest follows as listed
(:mod:`overlap_sched.analysis.relabel`), so what is listed decides. Within a budget it starts from::

    original, lowered   the original order, where it is above the budget with as little moved as brings it below
    lowest              the order with the lowest peak: least like the original, most room
    best so far         the shortest order known within the budget, where the others did not lead to it; before that,
                        the next point above the budget is lowered, too: no cliff that moving a few nodes could avoid

All of it is counted, nothing timed: the same problem gives the same frontier everywhere.
"""

import bisect
from collections.abc import Callable
from dataclasses import replace

from overlap_sched.analysis.frontier_points import Frontier, Point, bytes_text, undominated
from overlap_sched.analysis.relabel import in_original_ids, relabelled
from overlap_sched.errors import OptionsError
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options, options_given
from overlap_sched.peak_memory.best import best_order
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.repair import judged
from overlap_sched.peak_memory.windows import lower_to
from overlap_sched.problem import MAX_TOTAL_BYTES, Order, Problem
from overlap_sched.problem.pins import pinned
from overlap_sched.scheduler.driver import schedule

BUDGETS = 12
"""How many budgets are tried, unless said otherwise."""
CLOSE = 0.01
"""A target is met with the least memory up to this part of the range of peaks."""
LOWERING_STEPS = 8_000
"""Of the walk that lowers one order: what is not below the budget by then seldom gets there."""
WORTH = 1e-3
"""A part of the step, and of the peak. Two neighbours that differ by no more in either are close enough; a point above
the budget is lowered where its step is so much shorter than the best within."""


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
        options: How; headroom, budget and allocator are the frontier's own.
        budgets: How many to try, three at least.
        limit_bytes: Try this budget too.
        target_us: Look for the lowest peak at which the step is no longer than that.
        tell: Hears what is being done.

    Raises:
        OptionsError: ``budgets`` is below three, or there are pins.
    """
    if pinned(problem, () if options is None else options.pins):
        raise OptionsError("the frontier takes orders that know of no pins: leave them out, those of nodes, too.")
    if budgets < 3:
        raise OptionsError(f"budgets is {budgets}; it is 3 or more: the lowest, the original and no limit.")
    search = FrontierSearch(problem, options_given(options), tell, budgets)
    for budget_bytes in (MAX_TOTAL_BYTES, search.original.peak_bytes, search.lowest_bytes):
        search.at(budget_bytes)  # downward: what is found above is lowered to what is below
    while search.tried < budgets and search.lowest_bytes not in search.budgets:
        search.at(search.lowest_bytes)  # lowering an order can find a lower peak
    while search.tried < budgets and (gap := search.widest_gap()) is not None:
        search.at(gap)
    if limit_bytes is not None and limit_bytes >= search.lowest_bytes:
        search.at(limit_bytes)
    if target_us is not None:
        search.close_in(target_us)
    points = tuple(search.points)
    floor = min(search.floor_bytes, points[0].peak_bytes)
    return Frontier(problem, search.original, points, lower_bound_us(problem), floor, search.tried)


class FrontierSearch:
    """The orders found so far, and the budgets tried.

    Attributes:
        original: The original order. floor_bytes: No order's peak is lower.
        points: The frontier so far: by ascending peak and descending step.
        budgets: Those tried, ascending.
    """

    def __init__(self, problem: Problem, options: Options, tell: Callable[[str], None], budgets: int = BUDGETS) -> None:
        """Measures the original order and looks for the lowest peak."""
        self.problem, self.tell, self._most = problem, tell, budgets
        self.options = replace(options, budget="peak", memory_limit=None, memory_model=problem.memory_model)
        self.points: list[Point] = []
        self.budgets: list[int] = []
        self.original = self._found(problem.original_order)
        tell("looking for the lowest peak")
        low = best_order(problem, options.preserve_collective_order)
        self.floor_bytes = low.bound_bytes
        self._lowest = self._found(low.order)
        self._graph = memory_graph_of(problem, options.preserve_collective_order)
        self._tried: set[tuple[Order, int]] = set()  # scheduled from, or lowered, with this budget

    @property
    def lowest_bytes(self) -> int:
        """The lowest peak found."""
        return self.points[0].peak_bytes

    @property
    def tried(self) -> int:
        """How many budgets."""
        return len(self.budgets)

    def at(self, budget_bytes: int) -> None:
        """Schedule within a budget, from each order that fits into it."""
        if budget_bytes in self.budgets:
            return
        bisect.insort(self.budgets, budget_bytes)
        limit = "no limit" if budget_bytes == MAX_TOTAL_BYTES else bytes_text(budget_bytes)
        self.tell(f"budget {self.tried} of {max(self.tried, self._most)}: {limit}")
        starts = (self._lowered(self.original, budget_bytes), self._lowest)
        made = [self._schedule_from(start, budget_bytes) for start in starts]
        above = next((point for point in self.points if point.peak_bytes > budget_bytes), None)
        best = self._best_within(budget_bytes)
        if above is not None and (best is None or above.step_us < best.step_us * (1 - WORTH)):
            self._lowered(above, budget_bytes)
            best = self._best_within(budget_bytes)
        if best not in made:  # known from another budget, or lowered: what was made here is none like it
            self._schedule_from(best, budget_bytes)

    def _best_within(self, budget_bytes: int) -> Point | None:
        return next((point for point in reversed(self.points) if point.peak_bytes <= budget_bytes), None)

    def _schedule_from(self, start: Point | None, budget_bytes: int) -> Point | None:
        """Schedule with the order of a point as the reference, once per budget; not where it is above the budget."""
        if start is None or start.peak_bytes > budget_bytes or (start.order, budget_bytes) in self._tried:
            return None
        self._tried.add((start.order, budget_bytes))
        problem = relabelled(self.problem, start.order)
        result = schedule(problem, replace(self.options, headroom=budget_bytes - start.peak_bytes))
        return self._found(in_original_ids(result.order, start.order))

    def _lowered(self, point: Point, budget_bytes: int) -> Point:
        """A point brought below a budget with few moves, or as far down as they go; the same one where it fits."""
        if point.peak_bytes <= budget_bytes or (point.order, budget_bytes) in self._tried:
            return point
        self._tried.add((point.order, budget_bytes))
        first = set(self._graph.first)
        start = judged(self._graph, [v for v in point.order if v not in first])
        found, _ = lower_to(self._graph, start, budget_bytes, LOWERING_STEPS)
        return self._found(lead_with_inputs(self._graph, found.order))

    def _found(self, order: Order) -> Point:
        """Count an order at its own peak; keep the frontier one."""
        timeline, (peak, _) = replay(self.problem, order), peak_memory(self.problem, order)
        new = Point(peak, timeline.step_us, timeline.exposed_us, order)
        self.points = undominated([*self.points, new])
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
            close = left.step_us - right.step_us <= WORTH * right.step_us
            close = close or right.peak_bytes - begin <= max(WORTH * right.peak_bytes, 1)
            if unknown > widest and not close:
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
