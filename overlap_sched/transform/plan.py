"""A plan: rewrites and an order of what they make, judged against the best order of the graph as it was.

    found = plan(problem, prices, Options(rewrites=("bucket",)))
    found.schedule.scheduled.step_us <= found.without.scheduled.step_us     always

The budget is that of the graph as it was. A plan whose judges find anything wrong is none: the graph stays, in its best
order.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from overlap_sched.errors import OptionsError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import REPLAY_TOLERANCE, measure, violation
from overlap_sched.options import Options, kept_allocator
from overlap_sched.problem import Problem
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.collector import no_collection
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.pipeline import phases, schedule
from overlap_sched.scheduler.portfolio import close_enough
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.reserve import Overdraft, Reserve, within_reserve
from overlap_sched.scheduler.result import Figures, Schedule
from overlap_sched.transform.apply import NOT_KNOWN, apply
from overlap_sched.transform.in_place import saved_us
from overlap_sched.transform.members import Alike
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.records import Record, records
from overlap_sched.transform.rewrites import Form, Rewrite
from overlap_sched.transform.search import search
from overlap_sched.transform.trial import Asked, Legal, Trial, always
from overlap_sched.transform.wanted import Wanted, most_gain_us, most_runs, wanted_of

FORMS: tuple[Form, ...] = ("coalesced", "copied")
"""Forms of buckets, the one preferred first: coalesced ones copy nothing."""
HELD = 2
"""So many of the shortest trials are looked at, until the allocator can hold one."""
MOST_EXTRA, WORTH = 0.05, 4.0
"""What the allocator cannot hold is taken where it lacks at most this part of what the original order reserves, more
than the best order without rewrites does, and the step is shorter by so many times that part."""


@dataclass(frozen=True)
class Plan:
    """Rewrites and an order.

    Attributes:
        rewrites: What is done, in this order; none: the graph stays.
        schedule: Of the rewritten problem; its ``original`` figures are those of the graph as it was.
        without: The best order without rewrites.
        records: Per rewrite, what it bought and costs.
        trials: All that was tried, in this order.
        plan_s: Seconds that it took beyond ``without`` (for people; nothing depends on it).
        fell_back: Why rewrites that were found are not used; ``None``: none were, or they are.
    """

    rewrites: tuple[Rewrite, ...]
    schedule: Schedule
    without: Schedule
    records: tuple[Record, ...] = ()
    trials: tuple[Trial, ...] = ()
    plan_s: float = 0.0
    fell_back: str | None = None


def plan(
    problem: Problem,
    prices: Prices,
    options: Options,
    alike: Alike | None = None,
    forms: Sequence[Form] = FORMS,
    trials: Sequence[Trial] | None = None,
    legal: Legal = always,
) -> Plan:
    """Choose rewrites and an order.

    Args:
        problem: Its collectives priced by the model of ``prices``.
        prices: Of new nodes.
        options: ``rewrites`` says what may be tried; none: the order alone is found.
        alike: Per collective that may be bucketed, what members must share besides operator and group; ``None``: not
            known, all may.
        forms: Of buckets, the one preferred first. Where a backend has no coalesced collectives: ``("copied",)``.
        trials: Of :func:`tried_ahead`; ``None``: what pays is tried now.
        legal: Whether a gather may be kept or done again, or a collective split, where a graph knows more than the
            problem.

    Raises:
        OptionsError: No form. VerificationError: with ``strict=True``, where a plan is not what it was thought to be.
    """
    if not forms:
        raise OptionsError("forms is empty: buckets are coalesced, copied, or both.")
    without, wanted = schedule(problem, replace(options, rewrites=())), wanted_of(options, forms)
    began, made, broken = time.perf_counter(), Plan((), without, without), None
    try:
        with no_collection():
            if trials is None:
                trials = _searched(without, wanted, prices, alike, legal)
            made = _best(without, trials, prices, options, alike) if trials else made
            broken = _broken(made) if made.rewrites else None
    except Exception as error:  # what fails here must not take the training job with it
        broken = f"choosing rewrites failed: {type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(broken) from error
    if broken is not None:
        message = f"overlap_sched rewrites nothing in {problem.name!r}: {broken}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        made = Plan((), without, without, trials=made.trials, fell_back=broken)
    return replace(made, plan_s=time.perf_counter() - began)


def tried_ahead(
    problem: Problem,
    prices: Prices,
    options: Options,
    alike: Alike | None = None,
    forms: Sequence[Form] = FORMS,
    legal: Legal = always,
) -> Sequence[Trial]:
    """What :func:`plan` would try, for who wants no order but that of a rewritten graph; nothing where none is shorter.

    First what bounds the gain, which is linear; then from the best order for live bytes: no order is fitted to the
    allocator where nothing would come of it.
    """
    wanted = wanted_of(options, forms)
    if not most_gain_us(problem, prices, alike, wanted):
        return ()
    with no_collection():
        live = schedule(problem, replace(options, rewrites=(), allocator="none"))
        trials = _searched(live, wanted, prices, alike, legal)
    return trials if any(trial.problem is not None for trial in trials) else ()


def _searched(without: Schedule, wanted: Wanted, prices: Prices, alike: Alike | None, legal: Legal) -> Sequence[Trial]:
    """What was tried; nothing where the order is as good as any, or nothing can be gained."""
    problem, step_us = without.problem, without.scheduled.step_us
    compute_us = sum(problem.compute_us) - (saved_us(problem, prices) if wanted.in_place else 0.0)
    gain_us = min(most_gain_us(problem, prices, alike, wanted), step_us - compute_us)
    enough_us = compute_us * close_enough(Task(problem, without.options, without.base_bytes))
    if step_us <= enough_us or gain_us <= 0:  # as near to all compute as is asked for
        return ()
    asked = Asked(problem, prices, alike, without.budget_bytes, wanted.ops, legal)
    return search(asked, wanted, without.order, step_us, enough_us, most_runs(problem, gain_us)).trials


def _best(without: Schedule, trials: Sequence[Trial], prices: Prices, options: Options, alike: Alike | None) -> Plan:
    """The shortest trial that the allocator holds as well as the best order without rewrites, or that is worth it."""
    settings, seen = kept_allocator(without.options), list(trials)
    task = Task(without.problem, without.options, without.base_bytes)
    reserve = None if settings is None else Reserve.of(task, settings)
    most = None if reserve is None else reserve.overdraft(without.order)
    good = sorted((k for k, trial in enumerate(trials) if trial.problem is not None), key=lambda k: trials[k].step_us)
    for k in good[:HELD]:
        done, found = _finished(without, trials[k], prices, alike, reserve)
        if reserve is not None and most is not None:
            breaks = reserve.rewritten(done).overdraft(found.order)
            extra = max(breaks.over_bytes - most.over_bytes, 0) / reserve.reserved_bytes
            gain = 1 - found.step_us / without.scheduled.step_us
            if breaks > most and (extra > MOST_EXTRA or gain < WORTH * extra):
                seen[k] = replace(seen[k], why_not=_not_held(breaks))
                continue
        if not found.step_us < without.scheduled.step_us:
            seen[k] = replace(seen[k], why_not="no shorter once the allocator can hold it")
            continue
        return replace(_planned(without, done.problem, found, trials[k].rewrites), trials=tuple(seen))
    return Plan((), without, without, trials=tuple(seen))


def _not_held(breaks: Overdraft) -> str:
    return f"the allocator needs {breaks.over_bytes:,} bytes more than it may: too much for what it takes off the step"


def _finished(
    without: Schedule, best: Trial, prices: Prices, alike: Alike | None, reserve: Reserve | None
) -> tuple[Task, Candidate]:
    """A trial with all that the scheduler does behind it, on the problem in its own order, within the same budget."""
    assert best.problem is not None
    problem = apply(without.problem, best.rewrites, prices, alike or NOT_KNOWN)
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    begin, order = (
        tuple(ids[name] for name in best.problem.names(found)) for found in (best.problem.original_order, best.order)
    )
    task = Task(problem, replace(without.options, headroom=0, base="original"), without.budget_bytes)
    start = task.measured(order)
    better = phases(task, order, start)
    chosen = better if better.beats(start) and task.within_budget(better.order) else start
    if reserve is not None:
        chosen = within_reserve(reserve.rewritten(task), Reference(problem, begin, task.live_ranges), chosen)
    return task, chosen


def _planned(without: Schedule, problem: Problem, chosen: Candidate, rewrites: tuple[Rewrite, ...]) -> Plan:
    after = measure(problem, chosen.order)
    peak = max(after.profile)
    made = replace(
        without,
        problem=problem,
        order=tuple(chosen.order),
        scheduled=Figures(after.timeline.step_us, after.timeline.exposed_us, peak, list(after.profile).index(peak)),
        decisions=decisions(problem, after.timeline, chosen),
        work=without.work.plus(chosen.work),
    )
    return Plan(rewrites, made, without, records(without.problem, problem, rewrites))


def _broken(made: Plan) -> str | None:
    """The first promise that a plan breaks, by the judges; ``None``: it keeps all."""
    problem, order = made.schedule.problem, made.schedule.order
    broken = violation(problem, order)
    if broken is not None:
        return broken
    over_bytes = max(measure(problem, order).profile) - made.without.budget_bytes
    if over_bytes > 0:
        return f"the peak is {over_bytes} bytes above the budget of the graph as it was"
    step_us, before_us = replay(problem, order).step_us, made.without.scheduled.step_us
    if step_us > before_us * (1 + REPLAY_TOLERANCE):
        return f"the step takes {step_us} us, longer than the {before_us} us without rewrites"
    return None
