"""Schedule a problem: stages, each of which takes and gives a valid order within the budget.

::

    base order       the original one, or the one with the lowest peak                   Options.base
      -> live        the best order by live bytes: runs of the main loop, then polished  list_scheduler
      -> fitting     where torch's allocator cannot hold it: one near it that it can     reserve
      -> last        where the network binds: launches moved to where it would be idle   fill_links
      -> apart       groups that must not be in flight together                          apart
      -> verify      the judges look at the order; they share no code with the above     judge
      -> explain     why each collective is where it is                                  explain

All stages, one line each, are in :mod:`overlap_sched.scheduler.stages`. Where anything goes wrong on the way: the
original order, and why.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from overlap_sched.errors import MemoryModelError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.together import together
from overlap_sched.judge.validate import Measured, broken_promise, measure, violation
from overlap_sched.options import Options, headroom_bytes, kept_allocator
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.apart import clashes, kept_apart, on_one_stream
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.portfolio import lowest_peak
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.reserve import within_reserve
from overlap_sched.scheduler.result import NO_WORK, Faster, Figures, Schedule
from overlap_sched.scheduler.stage import Context, Stages
from overlap_sched.scheduler.stages import ALL, QUICK, made_live

STALLS = (0.0, 0.5, 1.0)
"""Orders with groups kept apart are made so, see :func:`overlap_sched.scheduler.apart.kept_apart`; the best is kept."""


def schedule(problem: Problem, options: Options | None = None, *, stages: Stages = ALL, seed: int = 0) -> Schedule:
    """Reorder so that communication hides behind compute, within the memory budget.

    The order that comes out is valid, stays within the budget and is not slower than the original in replay:
    a validator that shares no code with the scheduler has checked it. Where that fails, or the scheduler
    itself does, the original order comes back with the reason in ``fell_back``, and a warning.

    Args:
        problem: What to schedule.
        options: How; ``None``: the defaults (zero headroom).
        stages: All that is done; only benchmarks and tests ask for less.
        seed: Of what is tried at random; only benchmarks ask for another.

    Raises:
        MemoryModelError: The problem is in another memory model than ``options.memory_model``.
        VerificationError: With ``strict=True``: what would otherwise be the reason for falling back.
    """
    options = options or Options()
    _check_memory_model(problem, options)
    before = measure(problem, problem.original_order)
    return _judged(
        problem, options, before, lambda original: _best_order(problem, options, original, stages, seed), stages, seed
    )


class Unfitted:
    """A problem scheduled for live bytes alone; fitted to its allocator once that is asked for.

    Attributes:
        options: What was asked for.
        live: As by ``allocator="none"``: what can be held is nearly always at least as long.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        """Raises what :func:`schedule` raises."""
        _check_memory_model(problem, options)
        self.options, self._problem = options, problem
        self._before = measure(problem, problem.original_order)
        alone = replace(options, allocator="none")
        self.live = _judged(problem, alone, self._before, lambda _: self._found.chosen(None))

    @cached_property
    def fitted(self) -> Schedule:
        """What :func:`schedule` makes; nothing of :attr:`live` is made again."""
        return self.fitted_by(ALL)

    @cached_property
    def quick(self) -> Schedule:
        """The same without what takes longest: where orders are compared."""
        return self.fitted_by(QUICK)

    @cached_property
    def fits(self) -> bool:
        """Can the order for live bytes be held as it is? Then it is the fitted one."""
        return self.reserve is None or self.reserve.overdraft(self.live.order) == NOTHING

    @cached_property
    def reserve(self) -> Reserve | None:
        """What the original order needs of the allocator; ``None``: live bytes alone count."""
        settings = kept_allocator(self.options)
        if settings is None:
            return None
        return Reserve.of(Task(self._problem, self.options, self.live.base_bytes), settings)

    @cached_property
    def _found(self) -> "_Found":
        return _for_live_bytes(self._problem, self.options, _original(self._problem, self._before), ALL, 0)

    def fitted_by(self, stages: Stages, seed: int = 0) -> Schedule:
        """The same by some of the stages, and by another seed of what is tried at random."""
        if kept_allocator(self.options) is None or self.live.fell_back is not None:
            return replace(self.live, options=self.options)
        found = self._found.by(stages, seed)
        made = _judged(self._problem, self.options, self._before, lambda _: found.chosen(self.reserve))
        return replace(made, schedule_s=self.live.schedule_s + made.schedule_s)


def _judged(
    problem: Problem,
    options: Options,
    before: Measured,
    find: Callable[[Candidate], tuple[Candidate, int]],
    stages: Stages = ALL,
    seed: int = 0,
) -> Schedule:
    """What was found from the original order, once the judges have looked at it, or the original order."""
    began = time.perf_counter()
    after = before
    original = _original(problem, before)
    best, base_bytes, fell_back, unrestricted_us = original, original.peak_bytes, None, original.step_us
    try:
        best, base_bytes = find(original)
        unrestricted_us, best = best.step_us, apart(Task(problem, options, base_bytes), best, original, stages, seed)
        after, fell_back = _verified(problem, options, before, best, base_bytes)
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
    return Schedule(
        problem=problem,
        options=options,
        order=tuple(after.order),
        original=figures_of(problem, before),
        scheduled=figures_of(problem, after),
        headroom_bytes=headroom_bytes(options.headroom, base_bytes),
        base_bytes=base_bytes,
        decisions=decisions(problem, after.timeline, best),
        fell_back=fell_back,
        work=best.work,
        schedule_s=time.perf_counter() - began,
        unrestricted_us=None if options.concurrent_groups == "any" else unrestricted_us,
        faster=best.faster,
    )


def apart(task: Task, best: Candidate, original: Candidate, stages: Stages, seed: int) -> Candidate:
    """The best order with groups kept apart that must not meet (``Options.concurrent_groups``).

    From the best order, and from the best of the same graph with those groups on one stream; the original one where
    neither is better, or the allocator cannot hold it as well as the best.
    """
    problem, options = task.problem, task.options
    if options.concurrent_groups == "any" or best.order == original.order:
        return best
    clash, defers = clashes(problem, options.concurrent_groups), options.preserve_collective_order == "none"
    shared = on_one_stream(problem, options.concurrent_groups)
    alone = Task(shared, options, task.base_bytes).measured(original.order)
    other, _ = _best_order(shared, options, alone, stages, seed)
    settings = kept_allocator(options)
    reserve = None if settings is None else Reserve.of(task, settings)
    lacks = NOTHING if reserve is None else reserve.overdraft(best.order)
    chosen = original
    for found, stalls in product((best, other), STALLS):
        order = kept_apart(problem, found.order, clash, defers, stalls)
        if order is None or not task.within_budget(order):
            continue
        made = task.remeasured(found, order)
        if made.beats(chosen) and (reserve is None or reserve.overdraft(order) <= lacks):
            chosen = made
    return replace(chosen, work=best.work.plus(other.work))


def _original(problem: Problem, before: Measured) -> Candidate:
    return Candidate(problem.original_order, before.timeline.step_us, max(before.profile))


@dataclass(frozen=True)
class _Found:
    """The best order for live bytes.

    Attributes:
        context: Of the task asked for, and the order that its runs started from.
        original: The original order. best: by (step, peak), whatever the allocator makes of it.
    """

    context: Context
    original: Candidate
    best: Candidate

    def by(self, stages: Stages, seed: int) -> "_Found":
        """The same, to be fitted by other stages."""
        return replace(self, context=replace(self.context, stages=stages, seed=seed))

    def chosen(self, reserve: Reserve | None) -> tuple[Candidate, int]:
        """This, or one near it that the allocator can hold; and the peak that headroom is counted from."""
        best, asked, last = self.best, self.context.task, self.context.stages.last
        if best.order != self.original.order:
            if reserve is not None:
                best = within_reserve(self.context, reserve, best)
            best = replace(self.context, reserve=reserve).through(last, best)
            if reserve is not None and best.faster is not None:  # that, too, as it would be taken
                offered = self.context.through(last, self.best)
                lacks_bytes = reserve.overdraft(offered.order).over_bytes
                best = replace(best, faster=Faster(offered.step_us, lacks_bytes))
        kept = best.order == self.original.order and not asked.within_budget(best.order)
        return best, self.original.peak_bytes if kept else asked.base_bytes


def _best_order(
    problem: Problem, options: Options, original: Candidate, stages: Stages, seed: int
) -> tuple[Candidate, int]:
    """The best order that can be held, and the peak that headroom is counted from."""
    found, settings = _for_live_bytes(problem, options, original, stages, seed), kept_allocator(options)
    moved = found.best.order != original.order
    return found.chosen(Reserve.of(found.context.task, settings) if moved and settings is not None else None)


def _for_live_bytes(problem: Problem, options: Options, original: Candidate, stages: Stages, seed: int) -> _Found:
    best, work = original, NO_WORK
    contexts = [
        Context(task, Reference(task.problem, base, task.live_ranges), stages, seed=seed)
        for task, base in _tasks(problem, options, original)
    ]
    for context in contexts:
        found = made_live(context, original)
        work = work.plus(found.work)
        if found.beats(best):
            best = found
    return _Found(contexts[0], original, replace(best, work=work))


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


def phases(task: Task, base: Order, original: Candidate) -> Candidate:
    """All that moves nodes, from one base; what no stage improves stays as it is."""
    reference = Reference(task.problem, base, task.live_ranges)
    return made_live(Context(task, reference, ALL.without("uncontended twin")), original)


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


def figures_of(problem: Problem, measured: Measured) -> Figures:
    """What is reported of an order."""
    peak, timeline = max(measured.profile), measured.timeline
    at = list(measured.profile).index(peak)
    return Figures(timeline.step_us, timeline.exposed_us, peak, at, together(problem, timeline))
