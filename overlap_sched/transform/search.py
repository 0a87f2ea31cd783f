"""One search for rewrites under a byte budget: apply, schedule, judge, keep the best.

Used by rewrites of collectives (:mod:`overlap_sched.transform.plan`), :mod:`overlap_sched.fit` and
:mod:`overlap_sched.joint`::

    rewrite    apply to an order; what is above the budget before anything is moved is not scheduled
    run        a few policies of the list scheduler from that order: the shortest step within the budget
    finish     all that the scheduler does, on the best of them
    limit      what is best: the shortest step within a byte budget, or the lowest peak within a step limit

What to try is up to those who ask. How much is tried is counted, never timed: every rank comes to the same plan.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from overlap_sched.errors import RewriteError
from overlap_sched.options import Options
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.runs import EARLY, FAR_AHEAD, IN_ORDER, WHILE_STALLED, simple_bound_us, streams_bound_us
from overlap_sched.scheduler.task import NO_WORK, SAME_STEP, Candidate, Reference, Task, Work
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import NOT_KNOWN, Alike, apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recipes import sort_by_place
from overlap_sched.transform.rewrites import BUCKETED, Rewrite
from overlap_sched.transform.tuning import TUNING

POLICIES = (WHILE_STALLED, EARLY, FAR_AHEAD, IN_ORDER)
"""Launches late, launches early, the critical path ahead, the order as it is: which fits shows afterwards."""
Refuses = Callable[[Rewrite], str]
"""Why a rewrite is not legal in the graph that a problem was lifted from, which may know more than the problem; ``""``:
it is. Of a collective that ``alike`` leaves out, a bucket of it alone is asked about."""


def refuse_nothing(rewrite: Rewrite) -> str:
    """Refuse nothing of a problem that comes from no graph."""
    return ""


class MeasuredPlan(Protocol):
    """What has a step and a peak: an order, a plan, a cut."""

    @property
    def step_us(self) -> float:
        """How long it takes."""

    @property
    def peak_bytes(self) -> int:
        """The most that is live."""


Found = TypeVar("Found", bound=MeasuredPlan)


@dataclass(frozen=True)
class Limit:
    """What an answer must keep to.

    Attributes:
        bytes: Of the peak: the shortest step is looked for; ``None``: the other question.
        us: Of the step: the lowest peak is looked for; ``None``: the other question.
    """

    bytes: int | None
    us: float | None

    def key(self, found: MeasuredPlan) -> tuple[bool, float, float]:
        """The lower, the better: within the limit first; where nothing is, what is nearest to it."""
        if self.bytes is not None:
            over = found.peak_bytes > self.bytes
            return (over, found.peak_bytes, found.step_us) if over else (over, found.step_us, found.peak_bytes)
        over = self.us is not None and found.step_us > self.us * (1 + 1e-12)
        return (over, found.step_us, found.peak_bytes) if over else (over, found.peak_bytes, found.step_us)

    def best(self, plans: Iterable[Found]) -> Found:
        """Return the plan that answers the question best."""
        return min(plans, key=self.key)


def undominated(plans: Iterable[Found]) -> list[Found]:
    """Return the plans than which no other one is better in both: by ascending peak and descending step."""
    kept: list[Found] = []
    for one in sorted(plans, key=lambda one: (one.peak_bytes, one.step_us)):
        if not kept or one.step_us < kept[-1].step_us * (1 - SAME_STEP):
            kept.append(one)
    return kept


def halve(low: int, enough: int, reach: Callable[[int], int], most: int) -> None:
    """Look for ever lower peaks by halving a range of memory limits.

    Args:
        low: Nothing is looked for below.
        enough: The lowest peak so far.
        reach: Looks within a memory limit; returns the lowest peak then.
        most: So many halvings.
    """
    while most > 0 and low < enough * TUNING.close:
        middle, most = (low + enough) // 2, most - 1
        enough = reach(middle)
        low = middle if enough > middle else low


class Runs(NamedTuple):
    """The best of a few runs.

    Attributes:
        best: The shortest that is shorter than what was to be beaten; ``None``: none is.
        policies: Those that have found it and what was the best before it, the last first.
        work: What they took.
        least_us: No order takes less.
    """

    best: Candidate | None
    policies: tuple[Policy, ...]
    work: Work
    least_us: float


def run_policies(
    reference: Reference, budget_bytes: int, beat: Candidate, policies: Sequence[Policy] = POLICIES
) -> Runs:
    """Schedule from an order within the budget by each of a few policies; not where a bound says that none can win.

    Args:
        reference: That order.
        budget_bytes: What the peak may be.
        beat: What has been reached. Of an order, one as long with a lower peak beats it, too.
        policies: Of the runs.
    """
    problem, priorities = reference.problem, reference.priorities(policies[0].prepares)
    least_us = max(simple_bound_us(problem, priorities), streams_bound_us(priorities))
    best, winners, work = None, list[Policy](), NO_WORK
    for policy in policies if beat.order or least_us < beat.step_us else ():
        run = list_schedule(reference, np.array(budget_bytes, dtype=np.int64), policy, (), beat.step_us)
        work = work.plus(run.work)
        if run.made is not None and run.made.peak_bytes <= budget_bytes and run.made.beats(beat):
            best = beat = run.made
            winners.insert(0, policy)
    return Runs(best, tuple(winners), work, least_us)


def finish(problem: Problem, order: Order, options: Options, budget_bytes: int) -> tuple[Task, Candidate]:
    """Return the best that all stages of the scheduler make of an order within the budget."""
    task = Task(problem, replace(options, headroom=0, base="original"), budget_bytes)
    start = task.measured(order)
    better = ALL.run(task, task.reference(order), start)
    return task, better if better.beats(start) and task.within_budget(better.order) else start


@dataclass(frozen=True)
class Trial:
    """What became of a try.

    Attributes:
        what: It, in words.
        rewrites: What was tried.
        step_us: The step found; ``inf``: none within the budget, or none as short as the best before it.
        start: The order of the problem as it was that it started from; empty where nothing was scheduled.
        problem, order: The rewritten problem, and the order found; ``None`` and empty without one.
        why_not: Why it was not taken, in words; ``""``: it was, for the moment.
        work: What it took.
        policies: Those that have found it and what was the best before it, the last first.
    """

    what: str
    rewrites: tuple[Rewrite, ...] = ()
    step_us: float = math.inf
    start: Order = ()
    problem: Problem | None = None
    order: Order = ()
    why_not: str = ""
    work: Work = NO_WORK
    policies: tuple[Policy, ...] = ()


@dataclass
class SearchState:
    """What a search has found so far, and whether to go on.

    Attributes:
        best_us, best: The best so far. enough_us: what is good enough.
        runs_paid: How many runs of the scheduler pay for what a step (in microseconds) can still become shorter by.
        runs_left: How many more are made: the shorter the best, the fewer.
        trials: All that was tried, in this order. winners: policies that have won, the last first.
    """

    best_us: float = math.inf
    enough_us: float = 0.0
    runs_paid: Callable[[float], int] = lambda step_us: sys.maxsize
    runs_left: int = field(init=False)
    best: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    winners: list[Policy] = field(default_factory=list)
    _known: set[tuple[tuple[Rewrite, ...], Order]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.runs_left = self.runs_paid(self.best_us)

    @property
    def enough(self) -> bool:
        """Is the best good enough, or all spent that pays?"""
        return self.best_us <= self.enough_us or self.runs_left <= 0

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Those for the next try: all at first; then those that have won last."""
        if not any(trial.work.runs for trial in self.trials):
            return POLICIES
        return tuple(dict.fromkeys((*self.winners, *POLICIES)))[: TUNING.policies]

    def is_new(self, rewrites: Sequence[Rewrite], order: Sequence[NodeId]) -> bool:
        """Tell whether to try rewrites from an order: not where that was tried, or the best is good enough."""
        key = (tuple(rewrites), tuple(order))
        if self.enough or key in self._known:
            return False
        self._known.add(key)
        return True

    def note(self, trial: Trial) -> bool:
        """Note a try; tell whether it is the best now."""
        self.trials.append(trial)
        self.runs_left -= trial.work.runs
        if trial.step_us >= self.best_us:
            return False
        self.best_us, self.best = trial.step_us, trial
        self.runs_left = min(self.runs_left, self.runs_paid(trial.step_us))
        self.winners = list(dict.fromkeys((*trial.policies, *self.winners)))
        return True

    def start_over(self, step_us: float) -> "SearchState":
        """Return the state of another search from a step, with what this one may still spend."""
        other = SearchState(step_us, self.enough_us, self.runs_paid)
        other.runs_left = self.runs_left
        return other

    def join(self, other: "SearchState") -> None:
        """Note what such a search has found."""
        self.trials += other.trials
        self.runs_left = other.runs_left
        if other.best is not None and other.best_us < self.best_us:
            self.best_us, self.best, self.winners = other.best_us, other.best, other.winners


@dataclass(frozen=True)
class RewriteSearch:
    """A problem whose rewrites are tried, and what has been found so far.

    Attributes:
        problem: What is rewritten. prices: of new nodes.
        alike: Per collective that may be bucketed, what members share; ``None``: not known, all may.
        budget_bytes: What the peak may be.
        ops: Operators that may be bucketed.
        refuses: Asked of rewrites that ``alike`` says too little about: all but buckets.
        fits: An order within the budget where the original one is not; ``()``: that is.
        state: What has been found.
        done, whole: What has been done to ``problem`` already, and the problem as it was; ``()``, ``None``: nothing.
    """

    problem: Problem
    prices: Prices
    alike: Alike | None
    budget_bytes: int
    ops: tuple[str, ...] = BUCKETED
    refuses: Refuses = refuse_nothing
    fits: Order = ()
    state: SearchState = field(default_factory=SearchState)
    done: tuple[Rewrite, ...] = ()
    whole: Problem | None = None

    def rewritten(self, rewrites: Sequence[Rewrite], order: Sequence[NodeId] | None = None) -> Problem:
        """Return the problem with rewrites done along an order, ``None``: its original one.

        Raises:
            RewriteError: One of them is not legal.
        """
        return apply(self.problem, rewrites, self.prices, self.alike or NOT_KNOWN, order)

    def after(self, done: Sequence[Rewrite], order: Sequence[NodeId]) -> "RewriteSearch":
        """Return the search in the rewritten problem, from an order; what is tried there counts these in."""
        return replace(self, problem=self.rewritten(done, order), fits=(), done=tuple(done), whole=self.problem)

    def attempt(self, what: str, rewrites: Sequence[Rewrite], order: Sequence[NodeId]) -> bool:
        """Try rewrites unless that was tried, or the best is good enough; tell whether they are the best now."""
        if not self.state.is_new(rewrites, order):
            return False
        return self.state.note(self._tried(Trial(what, (*self.done, *rewrites)), rewrites, order))

    def _tried(self, trial: Trial, rewrites: Sequence[Rewrite], order: Sequence[NodeId]) -> Trial:
        """Apply rewrites to an order, and schedule from there."""
        try:
            problem = self.rewritten(rewrites, order)
        except RewriteError as error:
            return replace(trial, why_not=str(error))
        live_ranges = LiveRanges(problem)
        if (over_bytes := int(live_ranges.profile(problem.original_order).max()) - self.budget_bytes) > 0:
            return replace(trial, why_not=f"{over_bytes:,} bytes above the budget before anything is moved")
        start = tuple(order) if self.whole is None else order_as_it_was(self.whole, self.problem, order)
        reference, beat_us = Reference(problem, problem.original_order, live_ranges), self.state.best_us
        runs = run_policies(reference, self.budget_bytes, Candidate((), beat_us, 0), self.state.policies)
        trial = replace(trial, start=start, work=runs.work)
        if runs.best is None:
            bound = f"no order of it takes less than {runs.least_us:.0f} us"
            return replace(trial, why_not="no shorter" if runs.least_us < beat_us else bound)
        order, step_us = runs.best.order, runs.best.step_us
        return replace(trial, step_us=step_us, problem=problem, order=order, policies=runs.policies)


def order_as_it_was(problem: Problem, after: Problem, order: Sequence[NodeId]) -> Order:
    """Return nodes that both have, in the order given; what has been rewritten away stands before what first needs it.

    Rewritten again from this order, the problem comes to the one given, or nearly.

    Args:
        problem: As it was.
        after: Rewritten; nodes that both have are named alike.
        order: A valid order of ``after``.
    """
    nodes, ids = problem.nodes, {node.name: v for v, node in enumerate(problem.nodes)}
    there = [ids[name] for name in after.names(tuple(order)) if name in ids]
    wanted = (v for v in there if nodes[v].kind is not Kind.OUTPUT)
    places = {v: float(place) for place, v in enumerate(dict.fromkeys((*wanted, *problem.original_order)))}
    needs, names = problem.predecessors.__getitem__, lambda v: nodes[v].name
    return tuple(sort_by_place(places, places, needs, lambda v: (), names, ()))
