"""One try: rewrites applied to an order, and scheduled from there by a few policies; within the budget or nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.reached import reached
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.runs import EARLY, FAR_AHEAD, IN_ORDER, WHILE_STALLED, simple_bound_us, streams_bound_us
from overlap_sched.scheduler.task import NO_WORK, SAME_STEP, Reference, SchedulerRun, Work
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import NOT_KNOWN, apply
from overlap_sched.transform.draft import Alike
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Rewrite

POLICIES = (WHILE_STALLED, EARLY, FAR_AHEAD, IN_ORDER)
"""Launches late, launches early, the critical path ahead, the order as it is: which fits shows afterwards."""


Refuses = Callable[[Rewrite], str]
"""Why a rewrite is not legal in the graph that a problem was lifted from, which may know more than the problem; ``""``:
it is. Of a collective that ``alike`` leaves out, a bucket of it alone is asked about."""


def nothing(rewrite: Rewrite) -> str:
    """Refuse nothing of a problem that comes from no graph."""
    return ""


@dataclass(frozen=True)
class TrialContext:
    """What every try shares.

    Attributes:
        problem: What is rewritten. prices: of new nodes.
        alike: Per collective that may be bucketed, what members share; ``None``: not known, all may.
        budget_bytes: What the peak may be.
        ops: Operators that may be bucketed.
        refuses: Asked of rewrites that ``alike`` says too little about: all but buckets.
        fits: An order within the budget where the original one is not; ``()``: that is.
        done, whole: What has been done to ``problem`` already, and the problem as it was; ``()``, ``None``: nothing.
    """

    problem: Problem
    prices: Prices
    alike: Alike | None
    budget_bytes: int
    ops: tuple[str, ...] = BUCKETED
    refuses: Refuses = nothing
    fits: Order = ()
    done: tuple[Rewrite, ...] = ()
    whole: Problem | None = None

    def after(self, done: Sequence[Rewrite], order: Sequence[NodeId]) -> "TrialContext":
        """The same once rewrites are done, from an order; what is tried of it counts these in."""
        problem = apply(self.problem, done, self.prices, self.alike or NOT_KNOWN, order)
        return replace(self, problem=problem, fits=(), done=tuple(done), whole=self.problem)

    def start(self, order: Sequence[NodeId]) -> Order:
        """An order of ``problem`` as one of the problem as it was."""
        return tuple(order) if self.whole is None else order_as_it_was(self.whole, self.problem, order)


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
        over_bytes: By how much it was above the budget before anything was moved; 0: it was not, or was not looked at.
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
    over_bytes: int = 0
    work: Work = NO_WORK
    policies: tuple[Policy, ...] = ()


def tried(
    asked: TrialContext,
    what: str,
    rewrites: Sequence[Rewrite],
    order: Sequence[NodeId],
    beat_us: float,
    policies: Sequence[Policy] = POLICIES,
) -> Trial:
    """Apply rewrites to an order and schedule from there.

    Args:
        asked: What every try shares.
        what: For people.
        rewrites: What is tried.
        order: Of the problem as it was; new nodes are put into it.
        beat_us: What has been reached: a run that will be longer is given up.
        policies: Of the runs.
    """
    failed = Trial(what, (*asked.done, *rewrites))
    try:
        problem = apply(asked.problem, rewrites, asked.prices, asked.alike or NOT_KNOWN, order)
    except RewriteError as error:
        return replace(failed, why_not=str(error))
    live_ranges = LiveRanges(problem)
    over_bytes = int(live_ranges.profile(problem.original_order).max()) - asked.budget_bytes
    if over_bytes > 0:
        why_not = f"{over_bytes:,} bytes above the budget before anything is moved"
        return replace(failed, why_not=why_not, over_bytes=over_bytes)
    begin = primed(problem, live_ranges, asked.budget_bytes)
    return _scheduled(replace(failed, start=asked.start(order)), asked, problem, live_ranges, begin, beat_us, policies)


def again(asked: TrialContext, trial: Trial, policies: Sequence[Policy] = POLICIES) -> Trial:
    """Schedule what was found once more, from its own order: what a policy missed there, another one may find."""
    assert trial.problem is not None
    failed = replace(
        trial, what=f"{trial.what}, again from its own order", step_us=math.inf, problem=None, order=(), policies=()
    )
    live_ranges = LiveRanges(trial.problem)
    return _scheduled(failed, asked, trial.problem, live_ranges, trial.order, trial.step_us, policies)


def _scheduled(
    failed: Trial,
    asked: TrialContext,
    problem: Problem,
    live_ranges: LiveRanges,
    begin: Order,
    beat_us: float,
    policies: Sequence[Policy],
) -> Trial:
    reference = Reference(problem, begin, live_ranges)
    priorities = reference.priorities(policies[0].prepares)
    least_us = max(simple_bound_us(problem, priorities), streams_bound_us(problem, priorities))
    if least_us >= beat_us:
        return replace(failed, why_not=f"no order of it takes less than {least_us:.0f} us", work=NO_WORK)
    best, by, work = None, list[Policy](), NO_WORK
    for policy in policies:
        run = _run(reference, policy, asked.budget_bytes, beat_us)
        work = work.plus(run.work)
        if run.made is not None and run.made.step_us < beat_us * (1 - SAME_STEP):
            best, beat_us = run.made, run.made.step_us
            by.insert(0, policy)
    if best is None:
        return replace(failed, why_not="no shorter", work=work)
    return replace(failed, step_us=best.step_us, problem=problem, order=best.order, work=work, policies=tuple(by))


def _run(reference: Reference, policy: Policy, budget_bytes: int, beat_us: float) -> SchedulerRun:
    """One run; one that leaves the budget counts as given up."""
    run = list_schedule(reference, np.array(budget_bytes, dtype=np.int64), policy, (), beat_us)
    return SchedulerRun(run.work) if run.made is not None and run.made.peak_bytes > budget_bytes else run


def primed(problem: Problem, live_ranges: LiveRanges, budget_bytes: int) -> Order:
    """The original order with the first launch of each stream, and what it needs, at the front where memory allows.

    A stream that binds should not begin behind compute that needs nothing of it.
    """
    order = problem.original_order
    firsts: dict[str | None, NodeId] = {}
    for v in problem.collectives:
        firsts.setdefault(problem.nodes[v].group, v)
    for v in firsts.values():
        needed = {v} | reached([v], problem.predecessors.__getitem__)
        if any(problem.nodes[u].kind is Kind.WAIT for u in needed):
            continue
        moved = (*(u for u in order if u in needed), *(u for u in order if u not in needed))
        if int(live_ranges.profile(moved).max()) <= budget_bytes:
            order = moved
    return order


def order_as_it_was(problem: Problem, after: Problem, order: Sequence[NodeId]) -> Order:
    """Nodes that both have, in the order given; what has been rewritten away stands just before what first needs it.

    Rewritten again from this order, the problem comes to the one given, or nearly.

    Args:
        problem: As it was.
        after: Rewritten; nodes that both have are named alike.
        order: A valid order of ``after``.
    """
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    wanted = [ids[name] for name in after.names(tuple(order)) if name in ids]
    ends = [v for v, node in enumerate(problem.nodes) if node.kind is Kind.OUTPUT]
    placed, result = bytearray(len(problem.nodes)), list[NodeId]()
    for start in (*(v for v in wanted if v not in ends), *problem.original_order):
        stack = [start]
        while stack:
            v = stack[-1]
            missing = [u for u in problem.predecessors[v] if not placed[u]]
            if missing and not placed[v]:
                stack.extend(sorted(missing, reverse=True))
                continue
            stack.pop()
            if not placed[v]:
                placed[v] = True
                result.append(v)
    return tuple(result)
