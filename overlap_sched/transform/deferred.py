"""Compute deferred behind the last launch for who will put its collectives together."""

from collections.abc import Callable

import numpy as np

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.scheduler.fill_tail import admitted, with_deferred


def _last_launch(problem: Problem, order: Order) -> int:
    """The position of the last collective."""
    return max(at for at, v in enumerate(order) if problem.nodes[v].kind is Kind.COLLECTIVE)


def deferred(
    live_ranges: LiveRanges, order: Order, budget_bytes: int, tail_us: float, added_us: Callable[[int], float]
) -> tuple[Order, frozenset[int]]:
    """An order with compute deferred behind its last launch, and the collectives deferred with it.

    Its own step may be longer: it is made for somebody who will put those collectives together.

    Args:
        live_ranges: Of the problem.
        order: A valid order with collectives, within the budget.
        budget_bytes: What the peak may be; the order made keeps to it.
        tail_us: How much is to be hidden.
        added_us: By collective, what it adds to the end: of one that goes together with others, less than its time.
    """
    limit, last = np.array(budget_bytes, dtype=np.int64), _last_launch(live_ranges.problem, order)
    jobs = admitted(live_ranges, order, limit, last, tail_us, added_us)
    made = with_deferred(live_ranges.problem, order, last, jobs)
    if not jobs or bool((live_ranges.profile(made) > limit).any()):
        return order, frozenset()
    return made, frozenset(v for job in jobs for v in job.nodes).intersection(live_ranges.problem.collectives)
