"""What rewrites may be tried, whether that is worth its time, and what is refused: known before anything is scheduled.

Looking for rewrites takes time once, and what it finds is gained in every step. So what can be gained is bounded first,
and no more is tried than that pays back soon::

    latency of all collectives that could be merged, and what launching them takes,
    time of all gathers of what was gathered before     below the goal of the scheduler: nothing is tried
    the same, or all that is exposed where that is less,
    times PAYBACK_STEPS                                 so long may the search take, counted in runs
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from overlap_sched.options import Options, rewrites_wanted
from overlap_sched.problem import NodeId, Problem
from overlap_sched.scheduler.portfolio import GOAL_PERCENT, busy_us
from overlap_sched.transform.keeping import twice
from overlap_sched.transform.keys import batch_time, host_times, host_us, keys_of, latency_us, mates_in
from overlap_sched.transform.members import Alike
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Bucket, Form, Stream
from overlap_sched.transform.trial import Refuses

GATHERS = ("all_gather_into_tensor",)
"""Operators that copy and sum nothing."""
PAYBACK_STEPS = 1_000
"""What the search takes, so many steps must be able to give back."""
NODE_US = 20.0
"""What a run of the list scheduler takes per node, roughly: for that alone, as nothing is timed."""


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
    keeps: bool = False
    regathers: bool = False
    least: float = 0.0

    @property
    def anything(self) -> bool:
        """May anything be tried at all?"""
        return bool(self.forms) or self.keeps or self.beyond_bound

    @property
    def beyond_bound(self) -> bool:
        """May anything be tried whose gain nothing bounds?"""
        return self.streams or self.regathers


def wanted_of(options: Options, forms: Sequence[Form]) -> Wanted:
    """Return what these options and a backend that knows these forms of buckets admit."""
    kinds, least = rewrites_wanted(options), GOAL_PERCENT / 100 / max(options.effort, 1)
    used: tuple[Form, ...] = ()
    if "bucket" in kinds:
        used = tuple(forms)
    elif "coalesce_gathers" in kinds and "coalesced" in forms:
        used = ("coalesced",)
    ops = BUCKETED if "bucket" in kinds else GATHERS
    return Wanted(used, ops, "stream" in kinds, "keep" in kinds, "regather" in kinds, least)


def most_gain_us(problem: Problem, prices: Prices, alike: Alike | None, wanted: Wanted) -> float:
    """No rewrites take more off the step: all latency that buckets could save, launches, and gathers that need not be.

    Linear, without scheduling. 0 where it is less than what is worth a rewrite; ``inf``: nothing is known.
    """
    if not wanted.anything or not problem.collectives:
        return 0.0
    if wanted.beyond_bound:
        return math.inf
    gain_us = 0.0
    if wanted.forms:
        keys = keys_of(problem, alike, wanted.ops)
        gain_us = latency_us(problem, keys, batch_time(problem, prices))
        gain_us += host_us(host_times(problem), mates_in(keys))
    if wanted.keeps:
        gain_us += sum(problem.nodes[v].time_us for ids in twice(problem, alike) for v in ids[1:])
    return gain_us if gain_us > wanted.least * max(busy_us(problem)) else 0.0


def least_compute_us(problem: Problem, alike: Alike | None, wanted: Wanted) -> float:
    """No rewrites leave less on the compute stream: without what fewer launches save."""
    compute_us = sum(problem.compute_us)
    if wanted.forms and (times := host_times(problem)):
        compute_us -= host_us(times, mates_in(keys_of(problem, alike, wanted.ops)))
    return compute_us


def most_runs(problem: Problem, gain_us: float) -> int:
    """So many runs of the scheduler pay back soon where a step can be shorter by so much."""
    return int(PAYBACK_STEPS * gain_us / (NODE_US * max(len(problem.nodes), 1)))


def refused(problem: Problem, alike: Alike | None, wanted: Wanted, refuses: Refuses) -> tuple[str, ...]:
    """One sentence for each reason: the first collective that it is of, and how many more.

    Only what could otherwise be had is listed: of a bucket, collectives of a group that has several of one operator.
    """
    found = [*_not_moved(problem, wanted, refuses)]
    if alike is not None:
        found = [*_alone(problem, alike, wanted, refuses), *found]
    first: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    for name, why in found:
        reason = why.replace(repr(name), "")
        first.setdefault(reason, why)
        count[reason] += 1
    several = {reason: f" (The same of {number - 1:,} more.)" for reason, number in count.items() if number > 1}
    sentences = (f"{why}{several.get(reason, '')}" for reason, why in first.items())
    return (*sentences, *([] if alike is None else _of_several_types(problem, alike, wanted)))


def reductions(problem: Problem) -> list[NodeId]:
    """List what reduces in groups that gather, too: the two share a stream."""
    nodes = problem.nodes
    gathering = {nodes[v].group for v in problem.collectives if "gather" in nodes[v].op}
    return [v for v in problem.collectives if "reduce" in nodes[v].op and nodes[v].group in gathering]


def _not_moved(problem: Problem, wanted: Wanted, refuses: Refuses) -> Iterator[tuple[str, str]]:
    """Yield what stays on its own communicator."""
    for v in reductions(problem) if wanted.streams else ():
        name = problem.nodes[v].name
        if why := refuses(Stream(name)):
            yield name, why


def _alone(problem: Problem, alike: Alike, wanted: Wanted, refuses: Refuses) -> Iterator[tuple[str, str]]:
    """Yield what goes into no bucket."""
    for ids in _together(problem, wanted).values():
        for v in ids:
            name = problem.nodes[v].name
            if name not in alike and (why := refuses(Bucket((name,)))):
                yield name, why


def _of_several_types(problem: Problem, alike: Alike, wanted: Wanted) -> Iterator[str]:
    for (op, group), ids in _together(problem, wanted).items():
        kinds = list(dict.fromkeys(alike[name] for v in ids if (name := problem.nodes[v].name) in alike))
        if len(kinds) > 1:
            yield f"{op} of group {group!r} comes as {', '.join(kinds)}: a bucket has one type and one reduction."


def _together(problem: Problem, wanted: Wanted) -> dict[tuple[str, str], list[NodeId]]:
    """Collectives that might share a bucket, by operator and group."""
    found: dict[tuple[str, str], list[NodeId]] = defaultdict(list)
    for v in problem.collectives if wanted.forms else ():
        node = problem.nodes[v]
        if node.op in wanted.ops:
            found[node.op, node.group or ""].append(v)
    return {key: ids for key, ids in found.items() if len(ids) > 1}
