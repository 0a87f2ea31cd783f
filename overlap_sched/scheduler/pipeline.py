"""Schedule a problem: stages, each of which takes and gives a valid order within the budget.

::

    base order       the original one, or the one with the lowest peak                   Options.base
      -> stages      the best order by live bytes: runs of the main loop, then polished  list_scheduler
      -> device      with Options.memory_limit: one that runs in it                      device
      -> apart       groups that must not be in flight together                          apart
      -> verify      the judges look at the order; they share no code with the above     judge
      -> explain     why each collective is where it is                                  explain

All stages, one line each, are in :mod:`overlap_sched.scheduler.stages`. Where anything goes wrong on the way: the
original order, and why.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from overlap_sched.errors import OverlapSchedWarning, PinError, ProblemError, VerificationError
from overlap_sched.judge.pins import pin_violation
from overlap_sched.judge.together import together
from overlap_sched.judge.validate import JudgedOrder, broken_promise, measure, violation
from overlap_sched.options import Options, headroom_bytes, options_given
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId, Problem
from overlap_sched.problem.pins import pin_pairs
from overlap_sched.problem.precedence import by_key
from overlap_sched.scheduler.best import apart, best_order, closed_up
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.device import DeviceLimit
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.follow import Proposal, best_like
from overlap_sched.scheduler.result import Figures, Schedule
from overlap_sched.scheduler.stage import Stages
from overlap_sched.scheduler.stages import ALL


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
    options = options_given(options)
    _check_memory_model(problem, options)
    pin_pairs(problem, options.pins)  # what contradicts itself is the user's error, no reason to fall back
    before = measure(problem, problem.original_order)
    return _judged(problem, options, before, lambda original: best_order(problem, options, original, stages), stages)


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
    options = options_given(options)
    _check_memory_model(problem, options)
    before = measure(problem, problem.original_order)
    found = best_like(Task(problem, options, max(before.profile)), proposal, ALL)
    return None if found is None else _judged(problem, options, before, lambda _: (found, max(before.profile)))


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
    before, after = measure(problem, problem.original_order), measure(problem, order)
    candidate = Candidate(order, after.timeline.step_us, max(after.profile))
    candidate = replace(candidate, reasons=dict.fromkeys(problem.collectives, "reference"))
    return Schedule(
        problem=problem,
        options=options,
        order=tuple(order),
        original=figures_of(problem, before),
        scheduled=figures_of(problem, after),
        headroom_bytes=headroom_bytes(options.headroom, max(before.profile)),
        base_bytes=max(before.profile),
        decisions=decisions(problem, after.timeline, candidate),
        fell_back=None,
        work=candidate.work,
        schedule_s=0.0,
    )


def _judged(
    problem: Problem,
    options: Options,
    before: JudgedOrder,
    find: Callable[[Candidate], tuple[Candidate, int]],
    stages: Stages = ALL,
) -> Schedule:
    """Return what was found from the original order, once the judges have looked at it, or the original order."""
    began = time.perf_counter()
    after = before
    original = _original(problem, before)
    best, base_bytes, fell_back, unrestricted_us = original, original.peak_bytes, None, original.step_us
    try:
        best, base_bytes = find(original)
        task, unrestricted_us = Task(problem, options, base_bytes), best.step_us
        best = closed_up(task, apart(task, best, original, stages))
        if best.order == original.order and not task.within_budget(best.order):
            base_bytes = original.peak_bytes  # nothing was found within a lower peak: what stays needs its own
        after, fell_back = _verified(problem, options, before, best, base_bytes)
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
        best, after, base_bytes = replace(original, work=best.work), before, original.peak_bytes
    device = DeviceLimit.of(Task(problem, options, base_bytes))
    return Schedule(
        problem=problem,
        options=options,
        order=tuple(after.order),
        original=figures_of(problem, before),
        scheduled=figures_of(problem, after),
        headroom_bytes=headroom_bytes(options.headroom, base_bytes),
        base_bytes=base_bytes,
        decisions=decisions(
            problem, after.timeline, best, None if fell_back is not None else Task(problem, options, base_bytes)
        ),
        fell_back=fell_back,
        work=best.work,
        schedule_s=time.perf_counter() - began,
        unrestricted_us=None if options.concurrent_groups == "any" else unrestricted_us,
        memory_limit_bytes=None if device is None else device.limit_bytes,
        short_bytes=0 if device is None else device.short_bytes(LiveRanges(problem), best.order),
    )


def _original(problem: Problem, before: JudgedOrder) -> Candidate:
    return Candidate(problem.original_order, before.timeline.step_us, max(before.profile))


def _verified(
    problem: Problem, options: Options, before: JudgedOrder, best: Candidate, base_bytes: int
) -> tuple[JudgedOrder, str | None]:
    """The order as the judges see it, and the first rule or promise that it breaks."""
    if best.order == problem.original_order:
        broken = pin_violation(problem, best.order, options.pins)
        return before, None if broken is None else f"{broken}; no order was found that keeps it and is as short"
    broken = violation(problem, best.order)
    if broken is not None:
        return before, broken
    after = measure(problem, best.order)
    return after, broken_promise(problem, before, after, options, base_bytes)


def _check_memory_model(problem: Problem, options: Options) -> None:
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


def figures_of(problem: Problem, measured: JudgedOrder) -> Figures:
    """Return what is reported of an order."""
    peak, timeline = max(measured.profile), measured.timeline
    at = list(measured.profile).index(peak)
    return Figures(timeline.step_us, timeline.exposed_us, peak, at, together(problem, timeline))
