"""Two orders of one problem: what moved, and what each collective's exposed time became."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.peak_memory.allocator.reserved import replay_allocator
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.report.causes import ROUNDING, TAIL, Cause, causes_of, last_compute_us
from overlap_sched.report.diff.figures import Figure
from overlap_sched.report.words.reserved import settings_for
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.result import Decision


@dataclass(frozen=True)
class CollectivePlace:
    """Where one collective is in an order.

    Attributes:
        position: Of its launch.
        launch_us: When the compute stream reached it.
        wait_position, wait_us: The same of its first wait; ``None``: the graph has none.
        exposed_us: Stall at its waits.
        cause: Of most of that, as in :mod:`overlap_sched.report.causes`; ``nothing``: it is hidden.
    """

    position: int
    launch_us: float
    wait_position: int | None
    wait_us: float | None
    exposed_us: float
    cause: str


@dataclass(frozen=True)
class ReplayedOrder:
    """An order, replayed.

    Attributes:
        problem: Of which problem.
        order: Node ids.
    """

    problem: Problem
    order: Order

    @cached_property
    def timeline(self) -> Replay:
        """When everything runs."""
        return replay(self.problem, self.order)

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes live at once."""
        return peak_memory(self.problem, self.order)[0]

    @cached_property
    def position(self) -> Mapping[int, int]:
        """The position of each node."""
        return {v: at for at, v in enumerate(self.order)}

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """The cause that exposes each collective. Nobody scheduled here, so memory is never the reason."""
        candidate = Candidate(self.order, self.timeline.step_us, self.peak_bytes)
        return decisions(self.problem, self.timeline, candidate)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of its exposed time."""
        return causes_of(self.problem, self.timeline, self.decisions)

    @cached_property
    def tail_us(self) -> float:
        """From when on no compute is left."""
        return last_compute_us(self.problem, self.timeline)

    @cached_property
    def places(self) -> Mapping[int, CollectivePlace]:
        """The place of each collective."""
        return {decision.collective: self._place(decision) for decision in self.decisions}

    def _place(self, decision: Decision) -> CollectivePlace:
        timeline = self.timeline
        waits = self.problem.waits.get(decision.collective, ())
        first = min(waits, key=self.position.__getitem__, default=None)
        exposed = decision.exposed_us > ROUNDING * timeline.step_us
        worst = max(waits, key=lambda w: (timeline.stall_us[w], -self.position[w]), default=None)
        tail = worst is not None and timeline.at_us[worst] >= self.tail_us
        return CollectivePlace(
            position=decision.position,
            launch_us=decision.launch_us,
            wait_position=None if first is None else self.position[first],
            wait_us=None if first is None else timeline.at_us[first],
            exposed_us=decision.exposed_us if exposed else 0.0,
            cause=(TAIL if tail else decision.held_by) if exposed else "nothing",
        )


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

    @property
    def causes_us(self) -> dict[str, tuple[float, float]]:
        """Exposed time by cause, in A and in B."""
        before, after = ({cause.name: cause.exposed_us for cause in side.causes} for side in (self.before, self.after))
        return {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}

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
    """Compare two valid orders; O(n log n) and two replays of the allocator."""
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
    """Nothing in the tracker model: it frees what a collective in flight still holds."""
    settings = settings_for(before.problem)
    if settings is None:
        return []
    sides = (replay_allocator(one.problem, one.order, settings).reserved_bytes for one in (before, after))
    return [Figure("reserved", "", *sides)]
