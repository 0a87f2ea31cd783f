"""The best order by all stages, before the judges look at it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from overlap_sched.errors import PinError
from overlap_sched.options import Options, kept_allocator
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.problem.pins import pinned
from overlap_sched.scheduler.apart import clashes, kept_apart, on_one_stream
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.portfolio import lowest_peak
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.reserve import within_reserve
from overlap_sched.scheduler.result import NO_WORK, Faster
from overlap_sched.scheduler.stage import Context, Stages
from overlap_sched.scheduler.stages import ALL

STALLS = (0.0, 0.5, 1.0)
"""Orders with groups kept apart are made so, see :func:`overlap_sched.scheduler.apart.kept_apart`; the best is kept."""


@dataclass(frozen=True)
class BestOrder:
    """The best order for live bytes.

    Attributes:
        context: Of the task asked for, and the order that its runs started from.
        original: The original order; where that breaks pins, what took its place. best: by (step, peak), whatever the
            allocator makes of it.
    """

    context: Context
    original: Candidate
    best: Candidate

    def by(self, stages: Stages, seed: int) -> "BestOrder":
        """The same, to be fitted by other stages."""
        return replace(self, context=replace(self.context, stages=stages, seed=seed))

    @cached_property
    def offered(self) -> Candidate:
        """The best as the last stages leave it where live bytes alone count."""
        return self.context.through(self.context.stages.last, self.best)

    def chosen(self, reserve: Reserve | None) -> tuple[Candidate, int]:
        """That, or one near it that the allocator can hold; and the peak that headroom is counted from."""
        best, asked = self.best, self.context.task
        if best.order != asked.problem.original_order:
            best = self.offered if reserve is None else self._held(reserve)
        kept = best.order == self.original.order and not asked.within_budget(best.order)
        return best, self.original.peak_bytes if kept else asked.base_bytes

    def _held(self, reserve: Reserve) -> Candidate:
        lacks = reserve.overdraft(self.offered.order)
        if lacks == NOTHING:
            return self.offered
        held = within_reserve(self.context, reserve, self.best)
        best = replace(self.context, reserve=reserve).through(self.context.stages.last, held)
        if not reserve.task.may_stay and not reserve.runs(reserve.overdraft(best.order)):
            raise PinError("no order found that keeps the pins runs where the original order does, which breaks them")
        return best if best.faster is None else replace(best, faster=Faster(self.offered.step_us, lacks.lacks_bytes))


def best_order(
    problem: Problem, options: Options, original: Candidate, stages: Stages, seed: int
) -> tuple[Candidate, int]:
    """The best order that can be held, and the peak that headroom is counted from."""
    found, settings = for_live_bytes(problem, options, original, stages, seed), kept_allocator(options)
    moved = found.best.order != original.order
    return found.chosen(Reserve.of(found.context.task, settings) if moved and settings is not None else None)


def for_live_bytes(problem: Problem, options: Options, original: Candidate, stages: Stages, seed: int) -> BestOrder:
    """The best by (step, peak) of all bases that are asked for."""
    start = _with_pins(Task(problem, options, original.peak_bytes), original)
    best, work = start, NO_WORK
    contexts = [
        Context(task, Reference(task.problem, base, task.live_ranges), stages, seed=seed)
        for task, base in _tasks(Task(problem, options, original.peak_bytes), start.order)
    ]
    for context in contexts:
        found = _made(context, start)
        work = work.plus(found.work)
        if found.beats(best):
            best = found
    return BestOrder(contexts[0], start, replace(best, work=work))


def _with_pins(task: Task, original: Candidate) -> Candidate:
    """The original order; where it breaks pins, one near it that keeps them within the budget.

    Raises:
        PinError: There is none, or none was found.
    """
    order = task.nearest
    if order == original.order:
        return original
    if not task.within_budget(order):
        order = lowest_peak(task).order
    found = task.measured(order)
    over_bytes = int((task.live_ranges.profile(order) - task.limit).max())
    if over_bytes > 0:
        raise PinError(
            f"the original order breaks the pins, and the best order found that keeps them needs {over_bytes} bytes "
            "more than there are. Allow more headroom, or leave pins out."
        )
    return found


def _tasks(default: Task, original: Order) -> list[tuple[Task, Order]]:
    """The task asked for with the order to start from; then, where that is another, the default at the same budget."""
    options = default.options
    if options.base == "original":
        return [(default, original)]
    plan = lowest_peak(default)
    lowest_bytes = min(plan.peak_bytes, default.base_bytes)  # with pins it may be higher than the original's
    asked = replace(default, base_bytes=lowest_bytes) if options.base == "memory-peak" else default
    spare_bytes = int(asked.limit) - default.base_bytes
    if spare_bytes < 0:
        return [(asked, plan.order)]
    same_budget = replace(options, base="original", headroom=spare_bytes)
    return [(asked, plan.order), (replace(default, options=same_budget), original)]


def phases(task: Task, base: Order, original: Candidate) -> Candidate:
    """All that moves nodes, from one base; what no stage improves stays as it is."""
    reference = Reference(task.problem, base, task.live_ranges)
    return _made(Context(task, reference, ALL), original)


def _made(context: Context, original: Candidate) -> Candidate:
    """Return the best order by live bytes from the reference order; the original one where none is better."""
    task, base = context.task, tuple(context.reference.order)
    best = original
    if base != original.order and (start := task.measured(base)).beats(original):
        best = start
    return context.through(context.stages.live, replace(best, work=NO_WORK)) if task.problem.collectives else best


def apart(task: Task, best: Candidate, original: Candidate, stages: Stages, seed: int) -> Candidate:
    """The best order with groups kept apart that must not meet (``Options.concurrent_groups``).

    From the best order, and from the best of the same graph with those groups on one stream; the original one where
    neither is better, or the allocator cannot hold it as well as the best.

    Raises:
        PinError: That breaks pins, and nothing else was found.
    """
    problem, options = task.problem, task.options
    if options.concurrent_groups == "any" or best.order == original.order:
        return best
    clash, defers = clashes(problem, options.concurrent_groups), options.preserve_collective_order == "none"
    shared = on_one_stream(problem, options.concurrent_groups)
    alone = Task(shared, options, task.base_bytes).measured(original.order)
    other, _ = best_order(shared, options, alone, stages, seed)
    settings = kept_allocator(options)
    reserve = None if settings is None else Reserve.of(task, settings)
    lacks = NOTHING if reserve is None else reserve.overdraft(best.order)
    chosen = original if task.keeps(original.order) else None
    for found, stalls in product((best, other), STALLS):
        order = kept_apart(problem, found.order, clash, defers, stalls)
        if order is None or not task.within_budget(order):
            continue
        made = task.remeasured(found, order)
        better = task.keeps(order) and (chosen is None or made.beats(chosen))
        if better and (reserve is None or reserve.overdraft(order) <= lacks):
            chosen = made
    if chosen is None:
        raise PinError("no order found that keeps the pins keeps process groups apart, too")
    return replace(chosen, work=best.work.plus(other.work))


def closed_up(task: Task, best: Candidate) -> Candidate:
    """The best order with launches that are pinned together at the place of the last of them, or of the first.

    Raises:
        PinError: The allocator cannot hold either.
    """
    groups = [one.nodes for one in pinned(task.problem, task.options.pins) if one.pin.rule == "together"]
    if not groups or not task.keeps(best.order):
        return best
    orders = [_side_by_side(best.order, groups, at) for at in (-1, 0)]
    if best.order in orders:
        return best
    settings = kept_allocator(task.options)
    reserve = None if settings is None else Reserve.of(task, settings)
    fit = [order for order in orders if task.keeps(order) and task.within_budget(order)]
    found = [order for order in fit if reserve is None or reserve.runs(reserve.overdraft(order))]
    if not found:
        raise PinError("launched together, the collectives do not run where the original order does")
    return min((task.remeasured(best, order) for order in found), key=lambda one: one.step_us)


def _side_by_side(order: Order, groups: Sequence[Sequence[NodeId]], at: int) -> Order:
    """The nodes of each group where the first of them is (0), or the last (-1)."""
    group_of = {v: k for k, nodes in enumerate(groups) for v in nodes}
    members: list[list[NodeId]] = [[] for _ in groups]
    for v in order:
        if v in group_of:
            members[group_of[v]].append(v)
    moved: list[NodeId] = []
    for v in order:
        together = members[group_of[v]] if v in group_of else [v]
        moved += together if v == together[at] else []
    return tuple(moved)
