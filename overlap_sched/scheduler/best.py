"""The best order by all stages, before the judges look at it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from overlap_sched.errors import PinError
from overlap_sched.options import Options
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.problem.pins import pinned
from overlap_sched.scheduler.apart import clashes, kept_apart, on_one_stream
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.device import DeviceLimit, best_that_runs
from overlap_sched.scheduler.portfolio import lowest_peak
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import NO_WORK
from overlap_sched.scheduler.stage import Context, Stages
from overlap_sched.scheduler.stages import ALL

STALLS = (0.0, 0.5, 1.0)
"""Orders with groups kept apart are made so, see :func:`overlap_sched.scheduler.apart.kept_apart`; the best is kept."""


def best_order(problem: Problem, options: Options, original: Candidate, stages: Stages) -> tuple[Candidate, int]:
    """The best order by (step, peak) of all bases that are asked for, and the peak that headroom is counted from.

    With ``Options.memory_limit`` the best that runs on such a device.
    """
    default = Task(problem, options, original.peak_bytes)
    start = _with_pins(default, original)
    best, work = start, NO_WORK
    contexts = [
        Context(task, Reference(task.problem, base, task.live_ranges)) for task, base in _tasks(default, start.order)
    ]
    for context in contexts:
        found = _made(context, start, stages)
        work = work.plus(found.work)
        if found.beats(best):
            best = found
    best, asked, device = replace(best, work=work), contexts[0].task, DeviceLimit.of(default)
    if device is not None and problem.collectives:
        best = best_that_runs(device, contexts[0], start, best)
    kept = best.order == start.order and not asked.within_budget(best.order)
    return best, original.peak_bytes if kept else asked.base_bytes


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
    return _made(Context(task, reference), original, ALL)


def _made(context: Context, original: Candidate, stages: Stages) -> Candidate:
    """Return the best order by live bytes from the reference order; the original one where none is better."""
    task, base = context.task, tuple(context.reference.order)
    best = original
    if base != original.order and (start := task.measured(base)).beats(original):
        best = start
    return stages.run(context, replace(best, work=NO_WORK)) if task.problem.collectives else best


def apart(task: Task, best: Candidate, original: Candidate, stages: Stages) -> Candidate:
    """The best order with groups kept apart that must not meet (``Options.concurrent_groups``).

    From the best order, and from the best of the same graph with those groups on one stream; the original one where
    neither is better, or does not run on the device on which the best does.

    Raises:
        PinError: That breaks pins, and nothing else was found.
    """
    problem, options = task.problem, task.options
    if options.concurrent_groups == "any" or best.order == original.order:
        return best
    clash, defers = clashes(problem, options.concurrent_groups), options.preserve_collective_order == "none"
    shared = on_one_stream(problem, options.concurrent_groups)
    alone = Task(shared, options, task.base_bytes).measured(original.order)
    other, _ = best_order(shared, options, alone, stages)
    device = DeviceLimit.of(task)
    must_run = device is not None and device.runs(task.live_ranges, best.order)
    chosen = original if task.keeps(original.order) else None
    for found, stalls in product((best, other), STALLS):
        order = kept_apart(problem, found.order, clash, defers, stalls)
        if order is None or not task.within_budget(order):
            continue
        made = task.remeasured(found, order)
        better = task.keeps(order) and (chosen is None or made.beats(chosen))
        if better and (device is None or not must_run or device.runs(task.live_ranges, order)):
            chosen = made
    if chosen is None:
        raise PinError("no order found that keeps the pins keeps process groups apart, too")
    return replace(chosen, work=best.work.plus(other.work))


def closed_up(task: Task, best: Candidate) -> Candidate:
    """The best order with launches that are pinned together at the place of the last of them, or of the first.

    Raises:
        PinError: Neither is within the budget.
    """
    groups = [one.nodes for one in pinned(task.problem, task.options.pins) if one.pin.rule == "together"]
    if not groups or not task.keeps(best.order):
        return best
    orders = [_side_by_side(best.order, groups, at) for at in (-1, 0)]
    if best.order in orders:
        return best
    found = [order for order in orders if task.keeps(order) and task.within_budget(order)]
    if not found:
        raise PinError("launched together, the collectives need more memory than there is")
    device = DeviceLimit.of(task)
    if device is not None and device.runs(task.live_ranges, best.order):
        found = [order for order in found if device.runs(task.live_ranges, order)] or found
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
