"""A plan: rewrites and an order of what they make, judged against the best order of the graph as it was.

    found = plan(problem, prices, Options(rewrites=("bucket",)))
    found.schedule.scheduled.step_us <= found.without.scheduled.step_us     always

The budget is that of the graph as it was. To fit an order to the allocator takes longer than to find it, so one is
fitted, not two: the rewritten one. Where that fits and is shorter than the best order for live bytes without rewrites,
it has won: what can be held of that one is hardly ever shorter. Else that one is fitted, too, and they are compared. A
plan whose judges find anything wrong is none: the graph stays, in its best order.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap_sched.errors import OptionsError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.together import together_violation
from overlap_sched.judge.validate import REPLAY_TOLERANCE, measure, violation
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.apart import clashes, kept_apart
from overlap_sched.scheduler.best import phases
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.collector import no_collection
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from overlap_sched.scheduler.pipeline import Unfitted, figures_of, schedule
from overlap_sched.scheduler.portfolio import close_enough
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.reserve import within_reserve
from overlap_sched.scheduler.result import Schedule
from overlap_sched.scheduler.stage import Context
from overlap_sched.scheduler.stages import QUICK
from overlap_sched.transform.apply import NOT_KNOWN, apply
from overlap_sched.transform.members import Alike
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.records import Record, records
from overlap_sched.transform.rewrites import Form, Rewrite
from overlap_sched.transform.search import search
from overlap_sched.transform.trial import Refuses, Trial, TrialContext, nothing
from overlap_sched.transform.wanted import Wanted, least_compute_us, most_gain_us, most_runs, refused, wanted_of

FORMS: tuple[Form, ...] = ("coalesced", "copied")
"""Forms of buckets, the one preferred first: coalesced ones copy nothing."""
HELD = 2
"""So many of the shortest trials are looked at, until the allocator can hold one."""


@dataclass(frozen=True)
class Plan:
    """Rewrites and an order.

    Attributes:
        rewrites: What is done, in this order; none: the graph stays.
        schedule: Of the rewritten problem; its ``original`` figures are those of the graph as it was.
        without: The best order without rewrites that it was compared with. Where nothing is rewritten: ``schedule``.
            Else, as ``without.options.allocator`` says: for live bytes alone, where the plan is no longer than that
            and keeps to the allocator; or the one that the allocator can hold.
        records: Per rewrite, what it bought and costs.
        trials: All that was tried, in this order.
        plan_s: Seconds that it took beyond ``without`` (for people; nothing depends on it).
        fell_back: Why rewrites that were found are not used; ``None``: none were, or they are.
        refused: Why collectives stay as they are, see :func:`overlap_sched.transform.wanted.refused`.
    """

    rewrites: tuple[Rewrite, ...]
    schedule: Schedule
    without: Schedule
    records: tuple[Record, ...] = ()
    trials: tuple[Trial, ...] = ()
    plan_s: float = 0.0
    fell_back: str | None = None
    refused: tuple[str, ...] = ()


@no_collection()
def plan(
    problem: Problem,
    prices: Prices,
    options: Options,
    alike: Alike | None = None,
    forms: Sequence[Form] = FORMS,
    refuses: Refuses = nothing,
) -> Plan:
    """Choose rewrites and an order.

    Args:
        problem: Its collectives priced by the model of ``prices``.
        prices: Of new nodes.
        options: ``rewrites`` says what may be tried; none: the order alone is found.
        alike: Per collective that may be bucketed, what members must share besides operator and group; ``None``: not
            known, all may.
        forms: Of buckets, the one preferred first. Where a backend has no coalesced collectives: ``("copied",)``.
        refuses: Why a rewrite is not legal, where a graph knows more than the problem.

    Raises:
        OptionsError: No form. VerificationError: with ``strict=True``, where a plan is not what it was thought to be.
    """
    looked_for, as_it_was = _Search.of(problem, prices, options, alike, forms, refuses), replace(options, rewrites=())
    why_not = refused(problem, alike, looked_for.wanted, refuses)
    if not looked_for.gain_us:
        without = schedule(problem, as_it_was)
        return Plan((), without, without, refused=why_not)
    unfitted = Unfitted(problem, as_it_was)
    made = replace(_rewritten(unfitted, looked_for), refused=why_not)
    return made if made.rewrites else replace(made, schedule=unfitted.fitted, without=unfitted.fitted)


@no_collection()
def plan_of_rewrites(
    problem: Problem,
    prices: Prices,
    options: Options,
    alike: Alike | None = None,
    forms: Sequence[Form] = FORMS,
    refuses: Refuses = nothing,
) -> Plan | None:
    """The same for who wants no order but that of a rewritten graph; ``None``: nothing is rewritten.

    First what bounds the gain, which is linear. No order is fitted to the allocator where nothing would come of it.
    """
    looked_for = _Search.of(problem, prices, options, alike, forms, refuses)
    if not looked_for.gain_us:
        return None
    made = _rewritten(Unfitted(problem, replace(options, rewrites=())), looked_for)
    return made if made.rewrites else None


@dataclass(frozen=True)
class _Search:
    """What is looked for: what may be tried, the most that it can gain, and as in :func:`plan`."""

    wanted: Wanted
    gain_us: float
    prices: Prices
    alike: Alike | None
    refuses: Refuses

    @classmethod
    def of(
        cls,
        problem: Problem,
        prices: Prices,
        options: Options,
        alike: Alike | None,
        forms: Sequence[Form],
        refuses: Refuses,
    ) -> "_Search":
        if not forms:
            raise OptionsError("forms is empty: buckets are coalesced, copied, or both.")
        wanted = wanted_of(options, forms)
        return cls(wanted, most_gain_us(problem, prices, alike, wanted), prices, alike, refuses)


def _rewritten(unfitted: Unfitted, looked_for: _Search) -> Plan:
    """The best plan; without rewrites its schedule is for live bytes alone."""
    live, options, began = unfitted.live, unfitted.options, time.perf_counter()
    made, broken = Plan((), live, live), None
    try:
        trials = _searched(live, looked_for)
        made = _best(unfitted, trials, looked_for)
        broken = _broken(made) if made.rewrites else None
    except Exception as error:  # what fails here must not take the training job with it
        broken = f"choosing rewrites failed: {type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(broken) from error
    if broken is not None:
        message = f"overlap_sched rewrites nothing in {live.problem.name!r}: {broken}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=4)
        made = Plan((), live, live, trials=made.trials, fell_back=broken)
    return replace(made, plan_s=time.perf_counter() - began)


def _searched(without: Schedule, looked_for: _Search) -> Sequence[Trial]:
    """Return what was tried; nothing where the order is as good as any, or nothing can be gained."""
    problem, step_us = without.problem, without.scheduled.step_us
    if any(node.marks for node in problem.nodes):  # they say nothing of other nodes
        return ()
    wanted, prices = looked_for.wanted, looked_for.prices
    compute_us = least_compute_us(problem, prices, looked_for.alike, wanted)
    enough_us = compute_us * close_enough(Task(problem, without.options, without.base_bytes))
    if step_us <= enough_us:  # as near to all compute as is asked for
        return ()

    def runs_paid(best_us: float) -> int:
        return most_runs(problem, min(looked_for.gain_us, best_us - compute_us))

    fits = () if without.original.peak_bytes <= without.budget_bytes else without.order
    asked = TrialContext(problem, prices, looked_for.alike, without.budget_bytes, wanted.ops, looked_for.refuses, fits)
    return search(asked, wanted, without.order, step_us, enough_us, runs_paid).trials


def _best(unfitted: Unfitted, trials: Sequence[Trial], looked_for: _Search) -> Plan:
    """The shortest trial that the allocator holds as well as the best order without rewrites, or that is worth it."""
    live, seen = unfitted.live, list(trials)
    good = sorted((k for k, trial in enumerate(trials) if trial.problem is not None), key=lambda k: trials[k].step_us)
    least: Overdraft | None = None  # what the trials so far lack before they are fitted
    for k in good[:HELD]:
        if _too_little(unfitted, trials[k], looked_for.wanted.least):
            seen[k] = replace(seen[k], why_not="takes too little off the step to be fitted to the allocator")
            continue
        done = _finished(unfitted, trials[k], looked_for.prices, looked_for.alike)
        lacks = done.overdraft
        if lacks != NOTHING and least is not None and lacks >= least:
            seen[k] = replace(seen[k], why_not=_not_held(lacks))
            continue
        least = lacks
        found, breaks = done.fitted()
        if math.isinf(found.step_us):
            seen[k] = replace(seen[k], why_not="process groups that must not meet cannot be kept apart")
            continue
        without, why_not = _compared(unfitted, found, breaks)
        if not why_not:
            made = _planned(without, done, found, trials[k].rewrites)
            return replace(made, schedule=replace(made.schedule, options=unfitted.options), trials=tuple(seen))
        seen[k] = replace(seen[k], why_not=why_not)
    shorter = (k for k in good[HELD:] if trials[k].step_us < live.scheduled.step_us)
    for k in shorter if unfitted.reserve is not None else ():
        seen[k] = replace(seen[k], why_not=f"not fitted to the allocator, as the {HELD} shortest are not taken")
    return Plan((), live, live, trials=tuple(seen))


def _too_little(unfitted: Unfitted, trial: Trial, least: float) -> bool:
    """Must a trial be fitted, and takes less off the step than the scheduler cares for?"""
    return not unfitted.fits and trial.step_us > unfitted.live.scheduled.step_us * (1 - least)


def _compared(unfitted: Unfitted, found: Candidate, breaks: Overdraft) -> tuple[Schedule, str]:
    """The order without rewrites that a plan is compared with, and why that one is better; ``""``: it is not.

    With the one for live bytes alone where the plan would be better even if that could be held.
    """
    live = unfitted.live
    if found.step_us < live.scheduled.step_us and _may_be_taken(unfitted, breaks, NOTHING):
        return unfitted.fitted if unfitted.fits else live, ""
    without, reserve = unfitted.quick, unfitted.reserve
    most = NOTHING if reserve is None or breaks == NOTHING else reserve.overdraft(without.order)
    if not _may_be_taken(unfitted, breaks, most):
        return without, _not_held(breaks)
    shorter = found.step_us < without.scheduled.step_us
    return without, "" if shorter else "no shorter once the allocator can hold it"


def _may_be_taken(unfitted: Unfitted, breaks: Overdraft, most: Overdraft) -> bool:
    """Does a plan break no more than may be broken, or run where the original order does?"""
    return unfitted.reserve is None or breaks <= most or unfitted.reserve.runs(breaks)


def _not_held(breaks: Overdraft) -> str:
    return f"the allocator needs {breaks.over_bytes:,} bytes more than the original order has"


class _Finished(NamedTuple):
    """A trial with all that the scheduler does behind it, on the problem in its own order, within the same budget.

    Attributes:
        task: Of the rewritten problem. begin: the order that runs of it start from.
        found: The best for live bytes.
        reserve: What its orders may need of the allocator; ``None``: live bytes alone count.
    """

    task: Task
    begin: Order
    found: Candidate
    reserve: Reserve | None

    @property
    def overdraft(self) -> Overdraft:
        """The memory that the allocator lacks for it."""
        return NOTHING if self.reserve is None else self.reserve.overdraft(self.found.order)

    def fitted(self) -> tuple[Candidate, Overdraft]:
        """It, or an order near it that can be held, found without what takes longest, and what is lacking even so."""
        if self.reserve is None:
            return self._apart(self.found), NOTHING
        reference = Reference(self.task.problem, self.begin, self.task.live_ranges)
        held = self._apart(within_reserve(Context(self.task, reference, QUICK), self.reserve, self.found))
        return held, self.reserve.overdraft(held.order)

    def _apart(self, found: Candidate) -> Candidate:
        """With groups kept apart that must not meet, whatever was in flight together before; endless where that cannot
        be had.
        """
        problem, concurrent = self.task.problem, self.task.options.concurrent_groups
        if concurrent == "any":
            return found
        order = kept_apart(problem, found.order, clashes(problem, concurrent, as_originally=False))
        if order is None or not self.task.within_budget(order):
            return replace(found, step_us=math.inf)
        return self.task.remeasured(found, order)


def _finished(unfitted: Unfitted, best: Trial, prices: Prices, alike: Alike | None) -> _Finished:
    assert best.problem is not None
    without, reserve = unfitted.live, unfitted.reserve
    problem = apply(without.problem, best.rewrites, prices, alike or NOT_KNOWN)
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    begin, order = (
        tuple(ids[name] for name in best.problem.names(found)) for found in (best.problem.original_order, best.order)
    )
    task = Task(problem, replace(without.options, headroom=0, base="original"), without.budget_bytes)
    start = task.measured(order)
    better = phases(task, order, start)
    chosen = better if better.beats(start) and task.within_budget(better.order) else start
    return _Finished(task, begin, chosen, None if reserve is None else reserve.rewritten(task))


def _planned(without: Schedule, done: _Finished, chosen: Candidate, rewrites: tuple[Rewrite, ...]) -> Plan:
    problem = done.task.problem
    after = measure(problem, chosen.order)
    made = replace(
        without,
        problem=problem,
        order=tuple(chosen.order),
        scheduled=figures_of(problem, after),
        decisions=decisions(problem, after.timeline, chosen, done.task),
        work=without.work.plus(chosen.work),
        faster=chosen.faster,
        unrestricted_us=None if without.unrestricted_us is None else done.found.step_us,
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
    together = together_violation(problem, order, made.without.options.concurrent_groups, as_originally=False)
    if together is not None:
        return together
    step_us, before_us = replay(problem, order).step_us, made.without.scheduled.step_us
    if step_us > before_us * (1 + REPLAY_TOLERANCE):
        return f"the step takes {step_us} us, longer than the {before_us} us without rewrites"
    return None
