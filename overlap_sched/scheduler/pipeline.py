"""Schedule a problem: the best order found, verified, or the original one.

    original order -> runs within the budget -> the best by (step, peak) -> validator -> order
                                                                              |
                                                       anything wrong: the original order, and why

The main loop is in :mod:`overlap_sched.scheduler.run`.
"""

import time
import warnings

from overlap_sched.errors import MemoryModelError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.validate import Measured, broken_promise, measure, violation
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.portfolio import best_run, lowest_peak
from overlap_sched.scheduler.result import NO_WORK, Figures, Schedule


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
    if problem.memory_model != options.memory_model:
        raise MemoryModelError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model, but {options.memory_model!r} "
            "was asked for. A problem is in the model in which it was written: capture the graph again in the other "
            f"one, or ask for memory_model={problem.memory_model!r}."
        )
    before = after = measure(problem, problem.original_order)
    run, work, fell_back, base_bytes = None, NO_WORK, None, None
    peak_bytes = max(before.profile)
    try:
        base, base_bytes = _base(problem, options)
        if problem.collectives:
            counted_from = peak_bytes if base_bytes is None else base_bytes
            run, work = best_run(problem, options, before.timeline.step_us, peak_bytes, base, counted_from)
        order = base if run is None else run.order
        if order != problem.original_order:
            fell_back = violation(problem, order)
        if fell_back is None and order != problem.original_order:
            after = measure(problem, order)
            if run is None and after.timeline.step_us > before.timeline.step_us:
                after, base_bytes = before, None  # less memory, but a longer step, and no overlap makes up for it
            else:
                fell_back = broken_promise(problem, before, after, options, base_bytes)
    except Exception as error:  # a scheduler that fails must not take the training job with it
        if options.strict:
            raise VerificationError(f"scheduling {problem.name!r} failed: {_said(error)}") from error
        fell_back = f"the scheduler failed: {_said(error)}"
    if fell_back is not None:
        message = f"overlap_sched keeps the original order of {problem.name!r}: {fell_back}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        run, after, base_bytes = None, before, None
    return Schedule(
        problem=problem,
        options=options,
        order=tuple(after.order),
        original=_figures(before),
        scheduled=_figures(after),
        headroom_bytes=headroom_bytes(options.headroom, peak_bytes if base_bytes is None else base_bytes),
        base_bytes=base_bytes,
        decisions=decisions(problem, tuple(after.order), after.timeline, run),
        fell_back=fell_back,
        work=work,
        schedule_s=time.perf_counter() - began,
    )


def _base(problem: Problem, options: Options) -> tuple[Order, int | None]:
    """The order to start from, and the peak that headroom is counted from where it is not the original's."""
    if options.base == "original":
        return problem.original_order, None
    plan = lowest_peak(problem, options)
    return plan.order, plan.peak_bytes if options.base == "memory-peak" else None


def _figures(measured: Measured) -> Figures:
    peak = max(measured.profile)
    return Figures(measured.timeline.step_us, measured.timeline.exposed_us, peak, list(measured.profile).index(peak))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
