"""Schedule a problem: the phases, each of which takes and gives a valid order within the budget.

::

    base order       the original one, or the one with the lowest peak                 Options.base
      -> runs        several runs of the main loop, the best kept                      portfolio, list_scheduler
      -> search      small graphs: a beam search                                       beam_search
      -> shift       waits later and launches sooner, as far as memory allows          shift
      -> fill tail   compute deferred behind the last launch, to hide the end          fill_tail
      -> relink      far from the bound: orders between the base and the best one      relink
    best of these
      -> reserve     where torch's allocator cannot hold it: one near it that it can   reserve
      -> fill links  where the network binds: launches moved to where it would be idle fill_links
      -> apart       groups that must not be in flight together                        apart
      -> verify      the judges look at the order; they share no code with the above   judge
      -> explain     why each collective is where it is                                explain

Where anything goes wrong on the way: the original order, and why.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from overlap_sched.errors import MemoryModelError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.together import together
from overlap_sched.judge.validate import Measured, broken_promise, measure, violation
from overlap_sched.options import Options, headroom_bytes, kept_allocator
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.apart import clashes, kept_apart, on_one_stream
from overlap_sched.scheduler.beam_search import search_small
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.fill_links import fill_links
from overlap_sched.scheduler.fill_tail import fill_tail
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.portfolio import best_of_runs, lowest_peak
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.relink import relinked
from overlap_sched.scheduler.reserve import within_reserve
from overlap_sched.scheduler.result import NO_WORK, Faster, Figures, Schedule
from overlap_sched.scheduler.shift import shift

STALLS = (0.0, 0.5, 1.0)
"""Orders with groups kept apart are made so, see :func:`overlap_sched.scheduler.apart.kept_apart`; the best is kept."""


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
    options = options or Options()
    _check_memory_model(problem, options)
    before = measure(problem, problem.original_order)
    return _judged(problem, options, before, lambda original: _best_order(problem, options, original))


class Unfitted:
    """A problem scheduled for live bytes alone; fitted to its allocator once that is asked for.

    Attributes:
        options: What was asked for.
        live: As by ``allocator="none"``: what can be held is nearly always at least as long.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        """Raises what :func:`schedule` raises."""
        _check_memory_model(problem, options)
        self.options, self._problem, self._found = options, problem, list[_Found]()
        self._before = measure(problem, problem.original_order)
        self.live = _judged(problem, replace(options, allocator="none"), self._before, self._for_live_bytes)

    @cached_property
    def fitted(self) -> Schedule:
        """What :func:`schedule` makes; nothing of :attr:`live` is made again."""
        return self._fitted(walks=True)

    @cached_property
    def without_walks(self) -> Schedule:
        """The same without orders in between and random walks: faster, where orders are compared."""
        return self._fitted(walks=False)

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

    def _for_live_bytes(self, original: Candidate) -> tuple[Candidate, int]:
        self._found.append(_for_live_bytes(self._problem, self.options, original))
        return self._found[0].chosen(None)

    def _fitted(self, walks: bool) -> Schedule:
        if kept_allocator(self.options) is None or self.live.fell_back is not None:
            return replace(self.live, options=self.options)
        made = _judged(self._problem, self.options, self._before, lambda _: self._found[0].chosen(self.reserve, walks))
        return replace(made, schedule_s=self.live.schedule_s + made.schedule_s)


def _judged(
    problem: Problem, options: Options, before: Measured, find: Callable[[Candidate], tuple[Candidate, int]]
) -> Schedule:
    """What was found from the original order, once the judges have looked at it, or the original order."""
    began = time.perf_counter()
    after = before
    original = Candidate(problem.original_order, before.timeline.step_us, max(before.profile))
    best, base_bytes, fell_back, unrestricted_us = original, original.peak_bytes, None, original.step_us
    try:
        best, base_bytes = find(original)
        unrestricted_us, best = best.step_us, apart(Task(problem, options, base_bytes), best, original)
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


def apart(task: Task, best: Candidate, original: Candidate) -> Candidate:
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
    other, _ = _best_order(shared, options, alone)
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


@dataclass(frozen=True)
class _Found:
    """The best order for live bytes.

    Attributes:
        asked: What was asked for. base: the order that its runs started from. original: the original order.
        best: By (step, peak), whatever the allocator makes of it.
    """

    asked: Task
    base: Order
    original: Candidate
    best: Candidate

    def chosen(self, reserve: Reserve | None, walks: bool = True) -> tuple[Candidate, int]:
        """This, or one near it that the allocator can hold; and the peak that headroom is counted from."""
        best, asked = self.best, self.asked
        if best.order != self.original.order:
            if reserve is not None:
                best = within_reserve(reserve, Reference(asked.problem, self.base, asked.live_ranges), best, walks)
            if walks:
                best = fill_links(asked, best, reserve)
                if reserve is not None and best.faster is not None:  # that, too, as it would be taken
                    offered = fill_links(asked, self.best, None)
                    lacks_bytes = reserve.overdraft(offered.order).over_bytes
                    best = replace(best, faster=Faster(offered.step_us, lacks_bytes))
        kept = best.order == self.original.order and not asked.within_budget(best.order)
        return best, self.original.peak_bytes if kept else asked.base_bytes


def _best_order(problem: Problem, options: Options, original: Candidate) -> tuple[Candidate, int]:
    """The best order that can be held, and the peak that headroom is counted from."""
    found, settings = _for_live_bytes(problem, options, original), kept_allocator(options)
    moved = found.best.order != original.order
    return found.chosen(Reserve.of(found.asked, settings) if moved and settings is not None else None)


def _for_live_bytes(problem: Problem, options: Options, original: Candidate) -> _Found:
    tasks = _tasks(problem, options, original)
    asked, first = tasks[0]
    best, work = original, NO_WORK
    for task, base in tasks:
        for found in _phased(task, base, original):
            work = work.plus(found.work)
            if found.beats(best):
                best = found
    return _Found(asked, first, original, replace(best, work=work))


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


def _phased(task: Task, base: Order, original: Candidate) -> Iterator[Candidate]:
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
        best = relinked(task, reference, best)
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


def figures_of(problem: Problem, measured: Measured) -> Figures:
    """What is reported of an order."""
    peak, timeline = max(measured.profile), measured.timeline
    at = list(measured.profile).index(peak)
    return Figures(timeline.step_us, timeline.exposed_us, peak, at, together(problem, timeline))
