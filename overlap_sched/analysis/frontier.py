"""What another GiB buys: the shortest step found for each peak, from the lowest peak to memory without limit.

Every order found counts at its own peak, whatever budget it was made for; dominated orders are dropped.
So along the frontier more memory is never a longer step::

    step  |x  <- the order with the lowest peak
          |  x   x <- the original order: more memory and a longer step than its neighbour: not on the frontier
          |    x
          |        x           x <- without limit
          +---------------------- peak

Budgets are tried where the frontier is known least: half way between two neighbours that differ most. How many is
counted, so the same problem gives the same frontier everywhere.
"""

from collections.abc import Callable

from overlap_sched.analysis.frontier_points import Frontier
from overlap_sched.analysis.frontier_search import FrontierSearch
from overlap_sched.errors import OptionsError
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.options import Options
from overlap_sched.problem import MAX_TOTAL_BYTES, Problem

BUDGETS = 12
"""How many budgets are tried, unless said otherwise."""


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
    search = FrontierSearch(problem, options or Options(), tell)
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
