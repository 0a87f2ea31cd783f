"""Two orders of one problem: what moved, and what each collective's exposed time became."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.report.diff.figures import Figure
from overlap_sched.report.diff.placed import ROUNDING, CollectivePlace, ReplayedOrder
from overlap_sched.report.words.reserved import settings_shown
from overlap_sched.report.words.schedule import gap_percent


@dataclass(frozen=True)
class Moved:
    """One collective in both orders.

    Attributes:
        collective: Its id.
        before, after: In A and in B.
        exposed_us: How much more it is exposed in B; 0 where only rounding differs.
        launch, wait: Is its launch, or one of its waits, among the nodes that have to move to make B of A?
    """

    collective: int
    before: CollectivePlace
    after: CollectivePlace
    exposed_us: float
    launch: bool
    wait: bool


@dataclass(frozen=True)
class OrdersDiff:
    """Two orders of one problem.

    Attributes:
        before, after: A and B.
        moved: Ids of nodes that have to move to make B of A (:func:`moved_nodes`).
        collectives: Those that changed, the largest change of exposed time first, then the largest shift of the launch.
    """

    before: ReplayedOrder
    after: ReplayedOrder
    moved: frozenset[int]
    collectives: tuple[Moved, ...]

    @property
    def problem(self) -> Problem:
        """The problem of both."""
        return self.before.problem

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Step, exposed time, gap to the bound, peak, and what torch's allocator reserves where that can be said."""
        sides = (self.before, self.after)
        bound_us = lower_bound_us(self.problem)
        step = [side.timeline.step_us for side in sides]
        return (
            Figure("step", "", *step),
            Figure("exposed", "", *(side.timeline.exposed_us for side in sides)),
            Figure("gap", "", *(gap_percent(us, bound_us) for us in step)),
            Figure("peak", "", *(side.peak_bytes for side in sides)),
            *_reserved(self.before, self.after),
        )


def diff_orders(problem: Problem, before: Order, after: Order) -> OrdersDiff:
    """Compare two valid orders; O(n log n) and four replays of the allocator."""
    one, other = ReplayedOrder(problem, before), ReplayedOrder(problem, after)
    moved = moved_nodes(problem, before, after)
    least_us = ROUNDING * max(one.timeline.step_us, other.timeline.step_us)
    found = []
    for v in problem.collectives:
        waits = any(w in moved for w in problem.waits.get(v, ()))
        more_us = other.places[v].exposed_us - one.places[v].exposed_us
        more_us = more_us if abs(more_us) > least_us else 0.0
        if v in moved or waits or more_us:
            found.append(Moved(v, one.places[v], other.places[v], more_us, v in moved, waits))
    return OrdersDiff(one, other, moved, tuple(sorted(found, key=_size)))


def moved_nodes(problem: Problem, before: Sequence[int], after: Sequence[int]) -> frozenset[int]:
    """Find the nodes that have to move to make one order of the other, while as much as possible stays.

    All but the heaviest run of nodes that both orders have in the same sequence; compute that takes time weighs twice,
    so that of a launch and the matmul that it passed the launch has moved. (A heaviest increasing subsequence: the best
    weight for each last position, as in Fredman, "On computing the length of longest increasing subsequences", 1975.)
    O(n log n).
    """
    position = {v: at for at, v in enumerate(before)}
    previous: dict[int, int | None] = {}
    ends: list[int] = []  # positions at which a run may end, ascending, and so are the weights of
    weights: list[int] = []  # the heaviest run that ends there or before
    nodes: list[int] = []
    for v in after:
        node, at = problem.nodes[v], position[v]
        k = bisect_left(ends, at)
        previous[v] = nodes[k - 1] if k else None
        weight = (weights[k - 1] if k else 0) + (2 if node.kind is Kind.COMPUTE and node.time_us else 1)
        stop = k
        while stop < len(ends) and weights[stop] <= weight:
            stop += 1
        ends[k:stop], weights[k:stop], nodes[k:stop] = [at], [weight], [v]
    stays: set[int] = set()
    last = nodes[-1] if nodes else None
    while last is not None:
        stays.add(last)
        last = previous[last]
    return frozenset(position.keys() - stays)


def total_us(changes: Iterable[Moved]) -> float:
    """By how much they are exposed more in B, together."""
    return sum(change.exposed_us for change in changes)


def _size(change: Moved) -> tuple[float, int, int]:
    """Sorts the largest change of exposed time first, then the largest shift."""
    return -abs(change.exposed_us), -abs(change.after.position - change.before.position), change.collective


def _reserved(before: ReplayedOrder, after: ReplayedOrder) -> list[Figure]:
    """Per kind of allocator; nothing in the tracker model: it frees what a collective in flight still holds."""
    if before.problem.memory_model != "runtime":
        return []
    live_ranges = LiveRanges(before.problem)
    requests = [requests_of(live_ranges, side.order) for side in (before, after)]
    return [
        Figure("reserved", name, *(asked.replayed(settings).peak_reserved_bytes for asked in requests))
        for name, settings in settings_shown().items()
    ]
