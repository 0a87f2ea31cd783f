"""Schedule a problem: the best order found, verified, or the original one.

    original order -> runs within the budget -> the best by (step, peak) -> validator -> order
                                                                              |
                                                       anything wrong: the original order, and why

The main loop is in :mod:`overlap_sched.run`.
"""

import time
import warnings

from overlap_sched.decisions import decisions
from overlap_sched.errors import MemoryModelError, OverlapSchedWarning, VerificationError
from overlap_sched.improve import best_run
from overlap_sched.liveness import peak_memory
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import Order, Problem
from overlap_sched.replay import Replay, replay
from overlap_sched.result import Figures, Schedule
from overlap_sched.run import Run
from overlap_sched.validate import broken_promise, violation


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
    timeline, original = _measure(problem, problem.original_order)
    run, order, fell_back = None, problem.original_order, None
    try:
        run = best_run(problem, options, original.step_us, original.peak_bytes) if problem.collectives else None
        fell_back = _broken(problem, options, run) if run else None
    except Exception as error:  # a scheduler that fails must not take the training job with it
        if options.strict:
            raise VerificationError(f"scheduling {problem.name!r} failed: {_said(error)}") from error
        fell_back = f"the scheduler failed: {_said(error)}"
    if fell_back is not None:
        message = f"overlap_sched keeps the original order of {problem.name!r}: {fell_back}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        run = None

    scheduled = original
    if run is not None:
        order = run.order
        timeline, scheduled = _measure(problem, order)
    return Schedule(
        problem=problem,
        options=options,
        order=order,
        original=original,
        scheduled=scheduled,
        headroom_bytes=headroom_bytes(options.headroom, original.peak_bytes),
        decisions=decisions(problem, order, timeline, run),
        fell_back=fell_back,
        schedule_s=time.perf_counter() - began,
    )


def _measure(problem: Problem, order: Order) -> tuple[Replay, Figures]:
    timeline = replay(problem, order)
    return timeline, Figures(timeline.step_us, timeline.exposed_us, *peak_memory(problem, order))


def _broken(problem: Problem, options: Options, run: Run) -> str | None:
    """What is wrong with the run's order, if anything."""
    return violation(problem, run.order) or broken_promise(problem, run.order, options)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
