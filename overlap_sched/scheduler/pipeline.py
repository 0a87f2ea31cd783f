"""Schedule a problem: the phases, each of which takes and gives a valid order within the budget.

::

    base order       the original one, or the one with the lowest peak                 Options.base
      -> runs        several runs of the main loop, the best kept                      portfolio, list_scheduler
      -> search      small graphs: a beam search                                       beam_search
      -> shift       waits later and launches sooner, as far as memory allows          shift
      -> fill tail   compute deferred behind the last launch, to hide the end          fill_tail
    best of these
      -> reserve     where torch's allocator cannot hold it: one near it that it can   reserve
      -> verify      the judges look at the order; they share no code with the above   judge
      -> explain     why each collective is where it is                                explain

Where anything goes wrong on the way: the original order, and why.
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

from overlap_sched.errors import MemoryModelError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.validate import Measured, broken_promise, measure, violation
from overlap_sched.options import Options, headroom_bytes, kept_allocator
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.beam_search import search_small
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.fill_tail import fill_tail
from overlap_sched.scheduler.portfolio import best_of_runs, lowest_peak
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.reserve import Reserve, within_reserve
from overlap_sched.scheduler.result import NO_WORK, Figures, Schedule
from overlap_sched.scheduler.shift import shift


def schedule(problem: Problem, options: Options | None = None) -> Schedule:
    """Reorder so that communication hides behind compute, within the memory budget.

    The order that comes out is valid, stays within the budget and is not slower than the original in replay:
    a validator that shares no code with the scheduler has checked it. Where that fails, or the scheduler
    itself does, the original order comes back with the reason in ``fell_back``, and a warning.

    Args:
        problem: What to schedule.
        options: How; ``None``: the defaults (zero headroom).

    Raises:
        MemoryModelError: The problem is in another memory model than ``options.memory_model``.
        VerificationError: With ``strict=True``: what would otherwise be the reason for falling back.
    """
    began = time.perf_counter()
    options = options or Options()
    _check_memory_model(problem, options)
    before = after = measure(problem, problem.original_order)
    original = Candidate(problem.original_order, before.timeline.step_us, max(before.profile))
    best, base_bytes, fell_back = original, original.peak_bytes, None
    try:
        best, base_bytes = _best_order(problem, options, original)
        after, fell_back = _verified(problem, options, before, best, base_bytes)
    except Exception as error:  # a scheduler that fails must not take the training job with it
        fell_back = f"the scheduler failed: {type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(f"scheduling {problem.name!r} failed: {type(error).__name__}: {error}") from error
    if fell_back is not None:
        message = f"overlap_sched keeps the original order of {problem.name!r}: {fell_back}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        best, after, base_bytes = replace(original, work=best.work), before, original.peak_bytes
    return Schedule(
        problem=problem,
        options=options,
        order=tuple(after.order),
        original=_figures(before),
        scheduled=_figures(after),
        headroom_bytes=headroom_bytes(options.headroom, base_bytes),
        base_bytes=base_bytes,
        decisions=decisions(problem, after.timeline, best),
        fell_back=fell_back,
        work=best.work,
        schedule_s=time.perf_counter() - began,
    )


def _best_order(problem: Problem, options: Options, original: Candidate) -> tuple[Candidate, int]:
    """The best order by (step, peak), and the peak that headroom is counted from."""
    tasks = _tasks(problem, options, original)
    asked, first = tasks[0]
    best, work = original, NO_WORK
    for task, base in tasks:
        for found in _found(task, base, original):
            work = work.plus(found.work)
            if found.beats(best):
                best = found
    if best.order != original.order and (settings := kept_allocator(options)) is not None:
        reference = Reference(problem, first, asked.live_ranges)
        best = within_reserve(Reserve.of(asked, settings), reference, replace(best, work=work))
        work = best.work
    kept = best.order == original.order and not asked.within_budget(best.order)
    return replace(best, work=work), original.peak_bytes if kept else asked.base_bytes


def _tasks(problem: Problem, options: Options, original: Candidate) -> list[tuple[Task, Order]]:
    """The task asked for with the order to start from; then, where that is another, the default at the same budget."""
    default = Task(problem, options, original.peak_bytes)
    if options.base == "original":
        return [(default, original.order)]
    plan = lowest_peak(default)
    asked = replace(default, base_bytes=plan.peak_bytes) if options.base == "memory-peak" else default
    spare_bytes = int(asked.limit) - original.peak_bytes
    if spare_bytes < 0:
        return [(asked, plan.order)]
    same_budget = replace(options, base="original", headroom=spare_bytes)
    return [(asked, plan.order), (replace(default, options=same_budget), original.order)]


def _found(task: Task, base: Order, original: Candidate) -> Iterator[Candidate]:
    """The best order from one base; under contention also that made as if there were none: both are greedy."""
    yield phases(task, base, original)
    if task.problem.contention:
        alone = task.without_contention()
        found = phases(alone, base, alone.measured(original.order))
        yield task.remeasured(found, found.order)


def phases(task: Task, base: Order, original: Candidate) -> Candidate:
    """All that moves nodes, from one base; what no phase improves stays as it is."""
    reference = Reference(task.problem, base, task.live_ranges)
    best = original
    if base != original.order and (start := task.measured(base)).beats(original):
        best = start
    if not task.problem.collectives:
        return best
    best = best_of_runs(task, reference, best)
    best = search_small(task, reference, best)
    if best.reasons:  # else what there was is as good as it gets
        limit = task.limit_after(best)
        shifted = shift(task, best, limit)
        best = replace(fill_tail(task, best, shifted, limit), unshifted=best.order)
    return best


def _verified(
    problem: Problem, options: Options, before: Measured, best: Candidate, base_bytes: int
) -> tuple[Measured, str | None]:
    """The order as the judges see it, and the first rule or promise that it breaks."""
    if best.order == problem.original_order:
        return before, None
    broken = violation(problem, best.order)
    if broken is not None:
        return before, broken
    after = measure(problem, best.order)
    return after, broken_promise(problem, before, after, options, base_bytes)


def _check_memory_model(problem: Problem, options: Options) -> None:
    if problem.memory_model != options.memory_model:
        raise MemoryModelError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model, but {options.memory_model!r} "
            "was asked for. A problem is in the model in which it was written: capture the graph again in the other "
            f"one, or ask for memory_model={problem.memory_model!r}."
        )


def _figures(measured: Measured) -> Figures:
    peak = max(measured.profile)
    return Figures(measured.timeline.step_us, measured.timeline.exposed_us, peak, list(measured.profile).index(peak))
