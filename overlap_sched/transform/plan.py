"""A plan: rewrites and an order of what they make, judged against the best order of the graph as it was.

    found = plan(problem, prices, Options(rewrites=("bucket",)))
    found.schedule.scheduled.step_us <= found.without.scheduled.step_us     always

The budget is that of the graph as it was, and so is ``memory_limit``, where the best order without rewrites runs in it.
A plan whose judges find anything wrong is none: the graph stays, in its best order.
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
from overlap_sched.options import Options, replayed_allocator
from overlap_sched.problem import Problem
from overlap_sched.scheduler.apart import clashes, kept_apart
from overlap_sched.scheduler.best import phases
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.collector import no_collection
from overlap_sched.scheduler.device import DeviceLimit
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.pipeline import figures_of, schedule
from overlap_sched.scheduler.portfolio import close_enough
from overlap_sched.scheduler.result import Schedule
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
FINISHED = 2
"""So many of the shortest trials are scheduled to the end, until one is taken."""


@dataclass(frozen=True)
class Plan:
    """Rewrites and an order.

    Attributes:
        rewrites: What is done, in this order; none: the graph stays.
        schedule: Of the rewritten problem; its ``original`` figures are those of the graph as it was.
        without: The best order without rewrites. Where nothing is rewritten: ``schedule``.
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
    looked_for = _Search.of(problem, prices, options, alike, forms, refuses)
    without = schedule(problem, replace(options, rewrites=()))
    made = _rewritten(without, looked_for) if looked_for.gain_us else Plan((), without, without)
    return replace(made, refused=refused(problem, alike, looked_for.wanted, refuses))


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

    First what bounds the gain, which is linear.
    """
    looked_for = _Search.of(problem, prices, options, alike, forms, refuses)
    if not looked_for.gain_us:
        return None
    made = _rewritten(schedule(problem, replace(options, rewrites=())), looked_for)
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


def _rewritten(without: Schedule, looked_for: _Search) -> Plan:
    """The best plan."""
    options, began = without.options, time.perf_counter()
    made, broken = Plan((), without, without), None
    try:
        made = _best(without, _searched(without, looked_for), looked_for)
        broken = _broken(made) if made.rewrites else None
    except Exception as error:  # what fails here must not take the training job with it
        broken = f"choosing rewrites failed: {type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(broken) from error
    if broken is not None:
        message = f"overlap_sched rewrites nothing in {without.problem.name!r}: {broken}"
        if options.strict:
            raise VerificationError(message)
        warnings.warn(message, OverlapSchedWarning, stacklevel=4)
        made = Plan((), without, without, trials=made.trials, fell_back=broken)
    return replace(made, plan_s=time.perf_counter() - began)


def _searched(without: Schedule, looked_for: _Search) -> Sequence[Trial]:
    """Return what was tried; nothing where the order is as good as any, or nothing can be gained."""
    problem, step_us = without.problem, without.scheduled.step_us
    if any(node.marks for node in problem.nodes):  # they say nothing of other nodes
        return ()
    wanted, prices = looked_for.wanted, looked_for.prices
    compute_us = least_compute_us(problem, looked_for.alike, wanted)
    enough_us = compute_us * close_enough(Task(problem, without.options, without.base_bytes))
    if step_us <= enough_us:  # as near to all compute as is asked for
        return ()

    def runs_paid(best_us: float) -> int:
        return most_runs(problem, min(looked_for.gain_us, best_us - compute_us))

    fits = () if without.original.peak_bytes <= without.budget_bytes else without.order
    asked = TrialContext(problem, prices, looked_for.alike, without.budget_bytes, wanted.ops, looked_for.refuses, fits)
    return search(asked, wanted, without.order, step_us, enough_us, runs_paid).trials


def _best(without: Schedule, trials: Sequence[Trial], looked_for: _Search) -> Plan:
    """The shortest trial that is shorter than the best order without rewrites once the scheduler is done with it."""
    seen, limit = list(trials), without.memory_limit_bytes
    device = None if limit is None else DeviceLimit(limit, replayed_allocator(without.options))
    good = sorted((k for k, trial in enumerate(trials) if trial.problem is not None), key=lambda k: trials[k].step_us)
    for k in good[:FINISHED]:
        done = _finished(without, trials[k], looked_for.prices, looked_for.alike)
        found = done.apart()
        if math.isinf(found.step_us):
            seen[k] = replace(seen[k], why_not="process groups that must not meet cannot be kept apart")
            continue
        if found.step_us >= without.scheduled.step_us:
            seen[k] = replace(seen[k], why_not="no shorter than the best order without rewrites")
            continue
        short_bytes = 0 if device is None else device.short_bytes(done.task.live_ranges, found.order)
        if short_bytes > without.short_bytes:
            seen[k] = replace(seen[k], why_not=f"needs {short_bytes:,} bytes more than memory_limit")
            continue
        made = _planned(without, done, found, trials[k].rewrites)
        return replace(made, schedule=replace(made.schedule, short_bytes=short_bytes), trials=tuple(seen))
    return Plan((), without, without, trials=tuple(seen))


class _Finished(NamedTuple):
    """A trial with all that the scheduler does behind it, on the problem in its own order, within the same budget.

    Attributes:
        task: Of the rewritten problem. found: its best order.
    """

    task: Task
    found: Candidate

    def apart(self) -> Candidate:
        """With groups kept apart that must not meet, whatever was in flight together before; endless where that cannot
        be had.
        """
        problem, concurrent = self.task.problem, self.task.options.concurrent_groups
        if concurrent == "any":
            return self.found
        order = kept_apart(problem, self.found.order, clashes(problem, concurrent, as_originally=False))
        if order is None or not self.task.within_budget(order):
            return replace(self.found, step_us=math.inf)
        return self.task.remeasured(self.found, order)


def _finished(without: Schedule, best: Trial, prices: Prices, alike: Alike | None) -> _Finished:
    assert best.problem is not None
    problem = apply(without.problem, best.rewrites, prices, alike or NOT_KNOWN)
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    order = tuple(ids[name] for name in best.problem.names(best.order))
    task = Task(problem, replace(without.options, headroom=0, base="original"), without.budget_bytes)
    start = task.measured(order)
    better = phases(task, order, start)
    chosen = better if better.beats(start) and task.within_budget(better.order) else start
    return _Finished(task, chosen)


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
