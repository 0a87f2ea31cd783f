"""Schedule a problem: stages, each of which takes and gives a valid order within the budget.

::

    base order       the original one, or the one with the lowest peak                   Options.base
      -> stages      the best order by live bytes: runs of the main loop, then polished  ALL, list_scheduler
      -> device      with Options.memory_limit: one that runs in it                      restrictions
      -> apart       groups that must not be in flight together                          restrictions
      -> verify      the judges look at the order; they share no code with the above     judge
      -> explain     why each collective is where it is                                  explain

Where anything goes wrong on the way: the original order, and why.
"""

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product

from overlap_sched.errors import OverlapSchedWarning, PinError, ProblemError, VerificationError
from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.validate import (
    JudgedOrder,
    Promise,
    broken_promise,
    measure,
    pin_violation,
    together,
    violation,
)
from overlap_sched.options import Options, headroom_bytes, options_given
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.pins import pin_pairs, pinned
from overlap_sched.problem.precedence import by_key
from overlap_sched.scheduler.beam_search import search_small
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.polish import fill_stalls, relink, shift_best
from overlap_sched.scheduler.restrictions import (
    DeviceLimit,
    Proposal,
    best_like,
    best_that_runs,
    clashes,
    kept_apart,
    on_one_stream,
)
from overlap_sched.scheduler.runs import count_rounds, first_run, lowest_peak, more_runs, of_chains
from overlap_sched.scheduler.task import NO_WORK, TUNING, Candidate, Reason, Reference, Stage, Stages, Task, Work


@dataclass(frozen=True)
class Figures:
    """One order of one problem, measured by the judges.

    Attributes:
        step_us: Step time in the replay.
        exposed_us: Part of it that the compute stream stalls at waits.
        peak_bytes: Most bytes live at once.
        peak_at: First position of the order at which they are.
        groups_together: Pairs of collectives of groups that share more than one rank, in flight together.
    """

    step_us: float
    exposed_us: float
    peak_bytes: int
    peak_at: int
    groups_together: int = 0


@dataclass(frozen=True)
class Schedule:
    """An order that passed the validator, or the original one with the reason in ``fell_back``.

    Attributes:
        order: Node ids in the order to run.
        original, scheduled: Figures of the original order and of ``order``.
        headroom_bytes: The headroom asked for.
        base_bytes: The peak that it is counted from: the original's, or the lowest found (``Options.base``).
        decisions: One record per collective, in the order of launches.
        fell_back: ``None``, or why the original order was kept.
        work: What it took, counted.
        schedule_s: Seconds that it took (for people; nothing depends on it).
        unrestricted_us: Step of the best order found without ``Options.concurrent_groups``; ``None``: it asks for
            nothing.
        memory_limit_bytes: The device on which it is to run (``Options.memory_limit``); ``None``: no limit was given.
        short_bytes: What such a device lacks for it; 0: it runs there.
    """

    problem: Problem
    options: Options
    order: Order
    original: Figures
    scheduled: Figures
    headroom_bytes: int
    base_bytes: int
    decisions: tuple[Decision, ...]
    fell_back: str | None = None
    work: Work = NO_WORK
    schedule_s: float = 0.0
    unrestricted_us: float | None = None
    memory_limit_bytes: int | None = None
    short_bytes: int = 0

    @cached_property
    def lower_bound_us(self) -> float:
        """No order's step is shorter, whatever memory it is given."""
        return lower_bound_us(self.problem)

    @cached_property
    def budget_bound_us(self) -> float:
        """No order's step within the budget is shorter."""
        return budget_bound_us(self.problem, self.budget_bytes, self.lower_bound_us)

    @property
    def budget_bytes(self) -> int:
        """The most that the peak may be."""
        return self.base_bytes + self.headroom_bytes


def relink_far_from_bound(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: :func:`~overlap_sched.scheduler.polish.relink`, unless the best order is near the bound of any.

    A first round is taken if it gains 2 %: below twice that, half of what lies between is too much to ask for.
    """
    worth = best.reasons and count_rounds(task)
    far = worth and best.step_us > lower_bound_us(task.problem) * (1 + 2 * TUNING.relink_gain)
    return relink(task, reference, best) if far else best


def without_contention(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: under contention, what is found for the same graph without it: searches see further there."""
    if not task.problem.contention:
        return best
    plain = replace(task, problem=replace(task.problem, contention=NO_CONTENTION))
    found = ALL.run(plain, plain.reference(tuple(reference.order)), plain.measured(best.order))
    return best.or_better(task.remeasured(found, found.order), found.work)


ALL = Stages(
    (
        Stage("without contention", "contention: what is found for the graph without it", without_contention),
        Stage("first run", "a list scheduler that hides what it can", first_run),
        Stage("chains", "several long chains: runs from an order that goes from one to the other", of_chains),
        Stage("second runs", "which policy suits a graph is known only afterwards", more_runs),
        Stage("beam search", "small graphs: all that looks promising, beside one greedy choice", search_small),
        Stage("shift", "waits later and launches sooner: robust against wrong predictions", shift_best),
        Stage("relink", "far from the bound: what a run moves too far, moved part of the way", relink_far_from_bound),
        Stage("fill stalls", "compute goes behind what is waited for at once, or that skips the queue", fill_stalls),
    )
)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's collector of cycles: planning makes none, and looking for them took a few percent of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def schedule(problem: Problem, options: Options | None = None, *, stages: Stages = ALL) -> Schedule:
    """Reorder so that communication hides behind compute, within the memory budget.

    The order that comes out is valid, stays within the budget and is not slower than the original in replay:
    a validator that shares no code with the scheduler has checked it. Where that fails, or the scheduler
    itself does, the original order comes back with the reason in ``fell_back``, and a warning.

    Args:
        problem: What to schedule.
        options: How; ``None``: the defaults (zero headroom).
        stages: All that is done; only benchmarks and tests ask for less.

    Raises:
        ProblemError: The problem is in another memory model than ``options.memory_model``.
        PinError: ``options.pins``, or those that nodes have, contradict each other or the graph.
        VerificationError: With ``strict=True``: what would otherwise be the reason for falling back.
    """
    began, options = time.perf_counter(), _checked_options(problem, options)
    pin_pairs(problem, options.pins)  # what contradicts itself is the user's error, no reason to fall back
    return _judged(problem, options, stages, began)


def follow(problem: Problem, proposal: Proposal, options: Options | None = None) -> Schedule | None:
    """Reorder as :func:`schedule` does, with the launch sequence of another rank's order.

    Args:
        problem: What to schedule: nearly what that rank has scheduled.
        proposal: That rank's order.
        options: How; ``None``: the defaults (zero headroom).

    Returns:
        ``None``: there is no such order within the budget, or it would take longer than the original one.

    Raises:
        ProblemError: The problem is in another memory model than ``options.memory_model``.
        VerificationError: With ``strict=True``: what would otherwise be the reason for falling back.
    """
    began, options = time.perf_counter(), _checked_options(problem, options)
    task = Task(problem, options, max(measure(problem, problem.original_order).profile))
    best = best_like(task, proposal, ALL)
    return None if best is None else _judged(problem, options, ALL, began, best)


def follow_launches(problem: Problem, launches: Sequence[NodeId], options: Options) -> Schedule | None:
    """Reorder with the launches in this order, whatever memory and time it takes: other ranks launch so.

    The best order within the budget that is not slower than the original; where there is none, the original order
    with as little moved as the launches need.

    Args:
        problem: What to schedule.
        launches: Node ids: all that launch, in the order in which they must.
        options: How else.

    Returns:
        ``None``: the dependencies of the graph do not allow that order.
    """
    options = replace(options, preserve_collective_order="none", concurrent_groups="any", strict=False)
    chain, place = tuple(pairwise(launches)), range(len(problem.nodes))
    order = by_key(problem, chain, place)
    if order is None:
        return None
    wanted = list(launches)
    try:
        best = follow(problem, Proposal.of(problem, order), options)
        if best is not None and [v for v in best.order if v in set(wanted)] == wanted:
            return best
    except Exception:  # the order at hand serves
        pass
    return schedule_of(problem, order, options)


def schedule_of(problem: Problem, order: Sequence[NodeId], options: Options | None = None) -> Schedule:
    """Return the schedule that a given order is, whatever memory and time it takes.

    Args:
        problem: What is ordered.
        order: Node ids; an order that can run.
        options: The budget that reports compare with; ``None``: the defaults.
    """
    before, after = measure(problem, problem.original_order), measure(problem, order)
    task = Task(problem, options_given(options), max(before.profile))
    reasons: dict[NodeId, Reason] = dict.fromkeys(problem.collectives, "reference")
    best = Candidate(tuple(order), after.timeline.step_us, max(after.profile), reasons)
    return _schedule(task, before, after, decisions(problem, after.timeline, best))


def _judged(
    problem: Problem, options: Options, stages: Stages, began: float, found: Candidate | None = None
) -> Schedule:
    """Judge the best order that stages find, or one found; where that or the search fails: the original order."""
    before = measure(problem, problem.original_order)
    original = Candidate(problem.original_order, before.timeline.step_us, max(before.profile))
    asked = task = Task(problem, options, original.peak_bytes)
    best, after, fell_back = original, before, None
    try:
        if found is None:
            found, task = best_order(asked, original, stages)
        best = close_up(task, keep_groups_apart(task, found, original, stages))
        if best.order == original.order and not task.within_budget(original.order):
            task = asked  # nothing was found within a lower peak: what stays needs its own
        after, fell_back = _verified(task, before, best)
    except PinError as error:
        fell_back = str(error)
    except Exception as error:  # a scheduler that fails must not take the training job with it
        fell_back = f"the scheduler failed: {type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(f"scheduling {problem.name!r} failed: {type(error).__name__}: {error}") from error
    if fell_back is not None:
        message = f"overlap_sched keeps the original order of {problem.name!r}: {fell_back}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=3)
        best, after, task = replace(original, work=best.work), before, asked
    device = DeviceLimit.of(task)
    return replace(
        _schedule(task, before, after, decisions(problem, after.timeline, best, None if fell_back else task)),
        fell_back=fell_back,
        work=best.work,
        schedule_s=time.perf_counter() - began,
        unrestricted_us=None if options.concurrent_groups == "any" else (found or original).step_us,
        memory_limit_bytes=None if device is None else device.limit_bytes,
        short_bytes=0 if device is None else device.short_bytes(task.live_ranges, best.order),
    )


def _schedule(task: Task, before: JudgedOrder, after: JudgedOrder, decided: tuple[Decision, ...]) -> Schedule:
    return Schedule(
        problem=task.problem,
        options=task.options,
        order=tuple(after.order),
        original=figures_of(task.problem, before),
        scheduled=figures_of(task.problem, after),
        headroom_bytes=headroom_bytes(task.options.headroom, task.base_bytes),
        base_bytes=task.base_bytes,
        decisions=decided,
    )


def _verified(task: Task, before: JudgedOrder, best: Candidate) -> tuple[JudgedOrder, str | None]:
    """The order as the judges see it, and the first rule or promise that it breaks."""
    problem, options = task.problem, task.options
    if best.order == problem.original_order:
        broken = pin_violation(problem, best.order, options.pins)
        return before, None if broken is None else f"{broken}; no order was found that keeps it and is as short"
    if (broken := violation(problem, best.order)) is not None:
        return before, broken
    after = measure(problem, best.order)
    return after, broken_promise(problem, before, after, promise_of(options, task.base_bytes))


def promise_of(options: Options, base_bytes: int) -> Promise:
    """Return what an order made with these options is held to; ``base_bytes``: what headroom is counted from."""
    headroom, order = headroom_bytes(options.headroom, base_bytes), options.preserve_collective_order
    return Promise(base_bytes, headroom, options.budget, order, options.concurrent_groups, options.pins)


def _checked_options(problem: Problem, options: Options | None) -> Options:
    """The options given, or the defaults.

    Raises:
        ProblemError: They are not for such a problem.
    """
    options = options_given(options)
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"problem is a {type(problem).__name__}; it is a Problem: read_problem(FILE). Of a graph of torch: "
            "schedule_graph(gm)."
        )
    if problem.memory_model != options.memory_model:
        raise ProblemError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model, but {options.memory_model!r} "
            "was asked for. A problem is in the model in which it was written: capture the graph again in the other "
            f"one, or ask for memory_model={problem.memory_model!r}."
        )
    return options


def figures_of(problem: Problem, measured: JudgedOrder) -> Figures:
    """Return what is reported of an order."""
    peak, timeline = max(measured.profile), measured.timeline
    at = list(measured.profile).index(peak)
    return Figures(timeline.step_us, timeline.exposed_us, peak, at, together(problem, timeline))


def best_order(task: Task, original: Candidate, stages: Stages) -> tuple[Candidate, Task]:
    """The best order by (step, peak) from all bases that are asked for, and the task whose budget it keeps to.

    With ``Options.memory_limit`` the best that runs on such a device.
    """
    start = _with_pins(task, original)
    bases = _bases(task, start.order)
    references = [one.reference(base) for one, base in bases]
    found = [stages.run(one, reference, start) for (one, _), reference in zip(bases, references, strict=True)]
    best = start
    for one in found:
        best = one if one.beats(best) else best
    best = replace(best, work=NO_WORK.plus(*(one.work for one in found)))
    asked, device = bases[0][0], DeviceLimit.of(task)
    if device is not None and task.problem.collectives:
        best = best_that_runs(device, asked, references[0], start, best)
    return best, task if best.order == start.order and not asked.within_budget(best.order) else asked


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
    if (over_bytes := int((task.live_ranges.profile(order) - task.limit).max())) > 0:
        raise PinError(
            f"the original order breaks the pins, and the best order found that keeps them needs {over_bytes} bytes "
            "more than there are. Allow more headroom, or leave pins out."
        )
    return task.measured(order)


def _bases(default: Task, original: Order) -> list[tuple[Task, Order]]:
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


def keep_groups_apart(task: Task, best: Candidate, original: Candidate, stages: Stages) -> Candidate:
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
    alone = Task(on_one_stream(problem, options.concurrent_groups), options, original.peak_bytes)
    other, _ = best_order(alone, alone.measured(original.order), stages)
    device = DeviceLimit.of(task)
    must_run = device is not None and device.runs(task.live_ranges, best.order)
    chosen = original if task.keeps(original.order) else None
    for found, stalls in product((best, other), TUNING.apart_stalls):
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


def close_up(task: Task, best: Candidate) -> Candidate:
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
