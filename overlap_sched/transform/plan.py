"""A plan: rewrites of collectives and an order of what they make, judged against the best order of the graph as it was.

    found = plan(problem, prices, Options(rewrites=("bucket",)))
    found.schedule.scheduled.step_us <= found.without.scheduled.step_us     always

The budget is that of the graph as it was, and so is ``memory_limit``, where the best order without rewrites runs in it.
A plan that a judge objects to is not used: the graph stays, in its best order.

Merging saves latency on a stream and costs memory, copies, and the time until the first member may be used; to keep
what is gathered saves a gather and costs memory; which of them binds shows only in a schedule. So candidates are
scheduled, few of them (:mod:`overlap_sched.transform.search`), and the best is kept::

    the best order without rewrites                       always a candidate
      -> keep           gathers for their next use, where that fits                   gathers
      -> buckets        what is left goes together, on one stream or two; then all    buckets
      -> gather again   what is held where memory is short                            gathers
      -> copied         the best again with copies, where both forms may be used
      -> finish         all that the scheduler does, on the best
      -> verify         the judges look at it; else no rewrites

Looking for rewrites takes time once, and what it finds is gained in every step. So what can be gained is bounded first,
and no more is tried than that pays back soon::

    latency of all collectives that could be merged, and what launching them takes,
    time of all gathers of what was gathered before     below the goal of the scheduler: nothing is tried
    the same, or all that is exposed where that is less,
    times Tuning.payback_nodes                          so long may the search take, counted in runs
"""

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from overlap_sched.errors import OptionsError, OverlapSchedWarning, VerificationError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import REPLAY_TOLERANCE, measure, together_violation, violation
from overlap_sched.options import Options, replayed_allocator, rewrites_wanted
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.scheduler.driver import Schedule, figures_of, no_collection, schedule
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.restrictions import DeviceLimit, clashes, kept_apart
from overlap_sched.scheduler.runs import busy_us, close_enough
from overlap_sched.scheduler.task import TUNING, Candidate, Task
from overlap_sched.transform.apply import Alike
from overlap_sched.transform.buckets import (
    batch_time,
    bucket_gain_us,
    host_times,
    keys_of,
    reductions,
    try_buckets,
    without_latency,
)
from overlap_sched.transform.gathers import gathered_twice, try_gathering_again, try_keeping
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Bucket, Form, Keep, Recompute, Regather, Rewrite, Stream, to_json
from overlap_sched.transform.search import Refuses, RewriteSearch, SearchState, Trial, finish, refuse_nothing
from overlap_sched.transform.tuning import TUNING as PLANS

FORMS: tuple[Form, ...] = ("coalesced", "copied")
"""Forms of buckets, the one preferred first: coalesced ones copy nothing."""


class Record(NamedTuple):
    """One rewrite.

    Attributes:
        rewrite: It.
        stream_us: By how much less its group's stream has to do (negative: more).
        compute_us: What it adds to the compute stream: copies, smaller kernels; negative: what it takes off it.
        held_bytes: What its launch allocates, beyond the largest of what it stands for: live together from there on.
            Of what is kept, or gathered again (negative): what is held, or is not, between two uses.
    """

    rewrite: Rewrite
    stream_us: float
    compute_us: float
    held_bytes: int


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
        refused: Why collectives stay as they are, see :func:`refused`.
    """

    rewrites: tuple[Rewrite, ...]
    schedule: Schedule
    without: Schedule
    records: tuple[Record, ...] = ()
    trials: tuple[Trial, ...] = ()
    plan_s: float = 0.0
    fell_back: str | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What may be tried.

    Attributes:
        forms: Of buckets, the one preferred first; none: no buckets.
        ops: Operators that may be bucketed.
        streams: Whether reductions may go to a second communicator.
        keeps: Whether what is gathered may be kept for its next use. regathers: or gathered again.
        least: What part of a step is worth a rewrite: the goal of the scheduler, to which no order is improved either.
    """

    forms: tuple[Form, ...]
    ops: tuple[str, ...]
    streams: bool
    keeps: bool
    regathers: bool
    least: float

    @property
    def beyond_bound(self) -> bool:
        """May anything be tried whose gain nothing bounds?"""
        return self.streams or self.regathers


def wanted_of(options: Options, forms: Sequence[Form]) -> Wanted:
    """Return what these options and a backend that knows these forms of buckets admit."""
    kinds, least = rewrites_wanted(options), TUNING.goal_percent / 100 / max(options.effort, 1)
    used: tuple[Form, ...] = ()
    if "bucket" in kinds:
        used = tuple(forms)
    elif "coalesce_gathers" in kinds and "coalesced" in forms:
        used = ("coalesced",)
    ops = BUCKETED if "bucket" in kinds else BUCKETED[:1]
    return Wanted(used, ops, "stream" in kinds, "keep" in kinds, "regather" in kinds, least)


@no_collection()
def plan(
    problem: Problem,
    prices: Prices,
    options: Options,
    alike: Alike | None = None,
    forms: Sequence[Form] = FORMS,
    refuses: Refuses = refuse_nothing,
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
    if not forms:
        raise OptionsError("forms is empty: buckets are coalesced, copied, or both.")
    wanted = wanted_of(options, forms)
    gain_us = most_gain_us(problem, prices, alike, wanted)
    without = schedule(problem, replace(options, rewrites=()))
    made, broken, cause, began = Plan((), without, without), None, None, time.perf_counter()
    try:
        if gain_us:
            search = RewriteSearch(problem, prices, alike, without.budget_bytes, wanted.ops, refuses)
            made = _best(without, _search(without, search, wanted, gain_us), search)
            broken = _broken_promise(made) if made.rewrites else None
    except Exception as error:  # what fails here must not take the training job with it
        broken, cause = f"choosing rewrites failed: {type(error).__name__}: {error}", error
    if broken is not None:
        message = f"overlap_sched rewrites nothing in {problem.name!r}: {broken}"
        if options.strict:
            raise VerificationError(message) from cause
        warnings.warn(message, OverlapSchedWarning, stacklevel=4)
        made = Plan((), without, without, trials=made.trials, fell_back=broken)
    return replace(made, plan_s=time.perf_counter() - began, refused=refused(problem, alike, wanted, refuses))


def most_gain_us(problem: Problem, prices: Prices, alike: Alike | None, wanted: Wanted) -> float:
    """No rewrites take more off the step: all latency that buckets could save, launches, and gathers that need not be.

    Linear, without scheduling. 0 where it is less than what is worth a rewrite; ``inf``: nothing is known.
    """
    if not problem.collectives or not (wanted.forms or wanted.keeps or wanted.beyond_bound):
        return 0.0
    if wanted.beyond_bound:
        return math.inf
    gain_us = 0.0
    if wanted.forms:
        gain_us = sum(bucket_gain_us(problem, prices, alike, wanted.ops))
    if wanted.keeps:
        gain_us += sum(problem.nodes[v].time_us for ids in gathered_twice(problem, alike) for v in ids[1:])
    return gain_us if gain_us > wanted.least * max(busy_us(problem)) else 0.0


def _search(without: Schedule, search: RewriteSearch, wanted: Wanted, gain_us: float) -> Sequence[Trial]:
    """Return what was tried; nothing where the order is as good as any, or nothing can be gained."""
    problem, order, step_us = search.problem, without.order, without.scheduled.step_us
    launches_us = bucket_gain_us(problem, search.prices, search.alike, wanted.ops)[1] if wanted.forms else 0.0
    compute_us = sum(problem.compute_us) - launches_us
    enough_us = compute_us * close_enough(Task(problem, without.options, without.base_bytes))
    if step_us <= enough_us or any(node.marks for node in problem.nodes):  # marks say nothing of other nodes
        return ()

    def runs_paid(best_us: float) -> int:
        most_us = min(gain_us, best_us - compute_us)
        return int(PLANS.payback_nodes * most_us / max(len(problem.nodes), 1))

    state = SearchState(step_us, enough_us, runs_paid)
    search = replace(search, state=state, fits=() if without.original.peak_bytes <= without.budget_bytes else order)
    if wanted.keeps:
        try_keeping(search, order)
    if state.best is None:
        try_buckets(search, wanted.forms, wanted.streams)
    else:
        try_buckets(search.after(state.best.rewrites, state.best.start), wanted.forms, wanted.streams)
        # As if nothing were kept, which may leave no room for buckets; not where no latency at all would be too long.
        free = without_latency(problem, keys_of(problem, search.alike, search.ops), batch_time(problem, search.prices))
        if wanted.streams or max(busy_us(free)) < state.best_us:
            alone = state.start_over(step_us)
            try_buckets(replace(search, state=alone), wanted.forms, wanted.streams)
            state.join(alone)
    if wanted.regathers and not state.enough:
        try_gathering_again(search, order)
    best = state.best
    if len(wanted.forms) > 1 and best is not None and any(isinstance(one, Bucket) for one in best.rewrites):
        form = wanted.forms[1]  # one wait for all, where each takes time of the host
        others = tuple(Bucket(one.members, form) if isinstance(one, Bucket) else one for one in best.rewrites)
        search.attempt(f"{best.what}, {form}", others, best.start)
    return state.trials


def _best(without: Schedule, trials: Sequence[Trial], search: RewriteSearch) -> Plan:
    """The shortest trial that is shorter than the best order without rewrites once the scheduler is done with it."""
    trials, limit = tuple(trials), without.memory_limit_bytes
    device = None if limit is None else DeviceLimit(limit, replayed_allocator(without.options))
    good = (k for k, trial in enumerate(trials) if trial.problem is not None)
    k = min(good, key=lambda k: trials[k].step_us, default=None)
    if k is None:
        return Plan((), without, without, trials=trials)
    trial, problem = trials[k], search.rewritten(trials[k].rewrites)
    assert trial.problem is not None
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    order = tuple(ids[name] for name in trial.problem.names(trial.order))
    task, unrestricted = finish(problem, order, without.options, without.budget_bytes)
    found = _keep_apart(task, unrestricted)
    short_bytes = 0 if device is None or found is None else device.short_bytes(task.live_ranges, found.order)
    if found is None:
        why_not = "process groups that must not meet cannot be kept apart"
    elif found.step_us >= without.scheduled.step_us:
        why_not = "no shorter than the best order without rewrites"
    elif short_bytes > without.short_bytes:
        why_not = f"needs {short_bytes:,} bytes more than memory_limit"
    else:
        rewrites, after = trial.rewrites, measure(problem, found.order)
        made = replace(
            without,
            problem=problem,
            order=tuple(found.order),
            scheduled=figures_of(problem, after),
            decisions=decisions(problem, after.timeline, found, task),
            work=without.work.plus(found.work),
            unrestricted_us=None if without.unrestricted_us is None else unrestricted.step_us,
            short_bytes=short_bytes,
        )
        return Plan(rewrites, made, without, records(without.problem, problem, rewrites), trials)
    return Plan((), without, without, trials=(*trials[:k], replace(trial, why_not=why_not), *trials[k + 1 :]))


def _keep_apart(task: Task, found: Candidate) -> Candidate | None:
    """The order with groups kept apart that must not meet, whatever was in flight together before; ``None``: none."""
    if task.options.concurrent_groups == "any":
        return found
    pairs = clashes(task.problem, task.options.concurrent_groups, as_originally=False)
    order = kept_apart(task.problem, found.order, pairs)
    return None if order is None or not task.within_budget(order) else task.remeasured(found, order)


def _broken_promise(made: Plan) -> str | None:
    """The first promise that a plan breaks, by the judges; ``None``: it keeps all."""
    problem, order = made.schedule.problem, made.schedule.order
    together = together_violation(problem, order, made.without.options.concurrent_groups, as_originally=False)
    if (broken := violation(problem, order) or together) is not None:
        return broken
    if (over_bytes := max(measure(problem, order).profile) - made.without.budget_bytes) > 0:
        return f"the peak is {over_bytes} bytes above the budget of the graph as it was"
    step_us, before_us = replay(problem, order).step_us, made.without.scheduled.step_us
    longer = step_us > before_us * (1 + REPLAY_TOLERANCE)
    return f"the step takes {step_us} us, longer than the {before_us} us without rewrites" if longer else None


def refused(problem: Problem, alike: Alike | None, wanted: Wanted, refuses: Refuses) -> tuple[str, ...]:
    """Return a sentence for each reason why collectives stay as they are: the first of them, and how many more.

    Only what could otherwise be had is listed: of a bucket, collectives of a group that has several of one operator.
    """
    types, nodes, reasons = alike or {}, problem.nodes, defaultdict[str, list[str]](list)
    mates = defaultdict[tuple[str, str], list[str]](list)
    for v in problem.collectives if wanted.forms and alike is not None else ():
        if nodes[v].op in wanted.ops:
            mates[nodes[v].op, nodes[v].group or ""].append(nodes[v].name)
    several = {key: names for key, names in mates.items() if len(names) > 1}
    unknown = [name for names in several.values() for name in names if name not in types]
    asked: list[tuple[str, Rewrite]] = [(name, Bucket((name,))) for name in unknown]
    asked += [(nodes[v].name, Stream(nodes[v].name)) for v in reductions(problem)] if wanted.streams else []
    for name, one in asked:
        if why := refuses(one):
            reasons[why.replace(repr(name), "")].append(why)
    sentences = [f"{first}{f' (The same of {len(more):,} more.)' if more else ''}" for first, *more in reasons.values()]
    for (op, group), names in several.items():
        kinds = dict.fromkeys(types[name] for name in names if name in types)
        said = f"{op} of group {group!r} comes as {', '.join(kinds)}: a bucket has one type and one reduction."
        sentences += [said] if len(kinds) > 1 else []
    return tuple(sentences)


def records(before: Problem, after: Problem, rewrites: Sequence[Rewrite]) -> tuple[Record, ...]:
    """One record per rewrite, in their order.

    Args:
        before: The problem as it was.
        after: With all rewrites.
        rewrites: Them.
    """
    old, new = ({node.name: node for node in problem.nodes} for problem in (before, after))
    launches = {one.name for one in rewrites if isinstance(one, Bucket | Regather)}
    made = defaultdict[str, list[Node]](list)  # by launch: itself, and what is named after it
    for name in sorted(new.keys() - old.keys()):
        ends = (k for k in range(len(name), 0, -1) if name[:k] in launches and name[k : k + 1] in ("", "_", "."))
        made[name[: next(ends, 0)]].append(new[name])
    host_us, found = {before.nodes[v].name: us for v, us in host_times(before).items()}, list[Record]()
    for rewrite in rewrites:
        gone, come = list[Node](), list[Node]()
        match rewrite:
            case Bucket():
                gone, come = [old[name] for name in rewrite.members if name in old], made[rewrite.name]
            case Keep():
                gone = [old[rewrite.again]]
            case Regather():
                come = made[rewrite.name]
            case Recompute():
                come = [new[rewrite.new_name(name)] for name in rewrite.nodes]
        sums = defaultdict[Kind, float](float)
        for sign, nodes in ((1, come), (-1, gone)):
            for node in nodes:
                sums[node.kind] += sign * node.time_us
        compute_us = sums[Kind.COMPUTE] - sum(host_us.get(node.name, 0.0) for node in gone)
        largest = max((_allocated(before, node) for node in gone), default=0)
        held = sum(_allocated(after, node) for node in come if not node.name.endswith("_copy")) - largest
        held = -held if isinstance(rewrite, Keep | Regather) else max(held, 0)
        found.append(Record(rewrite, -sums[Kind.COLLECTIVE], compute_us, held))
    return tuple(found)


def _allocated(problem: Problem, node: Node) -> int:
    return sum(problem.storages[s].bytes for s in node.alloc)


def records_json(found: Sequence[Record]) -> list[dict[str, Any]]:
    """For ``--json``: the rewrite as :func:`overlap_sched.transform.rewrites.to_json` has it, and its figures."""
    figures = ("stream_us", "compute_us", "held_bytes")
    data = zip(found, to_json([one.rewrite for one in found]), strict=True)
    return [rewrite | {name: getattr(one, name) for name in figures} for one, rewrite in data]
