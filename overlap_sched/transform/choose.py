"""Which rewrites pay: chosen together with the order, by what the whole step becomes.

Merging saves latency on a stream and costs memory, copies, and the time until the first member may be used; which of
them binds shows only in a schedule. So candidates are scheduled, few of them, and the best is kept::

    the best order without rewrites                       always a candidate
      -> neighbours     buckets up to a cap, from small caps to large ones            neighbours
      -> batches        what waits for its stream goes together                       batching
      -> parts          larger or smaller caps in parts of the step, one by one
      -> streams        reductions on a second communicator, where that is asked for
      -> copied         the best again with copies, where both forms may be used
      -> phases         all that the scheduler does, on the best                      scheduler.pipeline
      -> verify         the judges look at it; else no rewrites

How much is tried is counted, never timed: every rank comes to the same plan. A candidate that cannot win by a simple
bound is not scheduled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.policies import NETWORK_BINDS, Policy
from overlap_sched.scheduler.reference import Reference
from overlap_sched.transform.apply import apply
from overlap_sched.transform.batching import BatchingStreams
from overlap_sched.transform.keys import BatchTime, batch_time, keys_of, without_latency
from overlap_sched.transform.neighbours import Windows, neighbours
from overlap_sched.transform.rewrites import Bucket, Form, Rewrite, Stream
from overlap_sched.transform.trial import POLICIES, Asked, Trial, tried

CAPS = (32, 48, 64, 96, 16, 8, 4)
"""Of buckets of neighbours, in latencies; once one has been found good, most small ones cannot win by the bound."""
BINDS = 0.5
"""Neighbours are merged on streams that are at least this part as busy as the busiest."""
BATCHES = ((32, NETWORK_BINDS[2]), (8, NETWORK_BINDS[2]), (32, NETWORK_BINDS[0]))
"""Of batches of what waits: caps in latencies, and the policy of the run."""
LEARNS, AFTERWARDS = 3, 2
"""The first tries run all policies; those after them so many: a graph stays with what suits it."""
PARTS = 4
"""Parts of the step that may have caps of their own."""


@dataclass(frozen=True)
class Wanted:
    """What may be tried.

    Attributes:
        forms: Of buckets, the one preferred first.
        buckets: Whether there may be any.
        streams: Whether reductions may go to a second communicator.
    """

    forms: tuple[Form, ...]
    buckets: bool
    streams: bool


@dataclass
class Found:
    """The best so far, and all that was tried, in this order; policies that have won, the last one first."""

    best_us: float
    best: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    winners: list[Policy] = field(default_factory=list)

    def see(self, trial: Trial) -> bool:
        """Note a try; is it the best now?"""
        self.trials.append(trial)
        if trial.step_us >= self.best_us:
            return False
        self.best_us, self.best = trial.step_us, trial
        if trial.policy in self.winners:
            self.winners.remove(trial.policy)
        if trial.policy is not None:
            self.winners.insert(0, trial.policy)
        return True

    def policies(self) -> Sequence[Policy]:
        """Those for the next try: all at first; then those that have won last, or the first where none has."""
        if sum(trial.problem is not None or trial.work.runs > 0 for trial in self.trials) < LEARNS:
            return POLICIES
        return (self.winners or POLICIES)[:AFTERWARDS]


class Graph:
    """A problem with its reductions where they are to run: on their own stream, or on a second one.

    Attributes:
        problem: With the groups of this variant; ids are those of the problem asked about.
        moved: Names of the collectives on a second communicator.
        keys: Of all that may be bucketed. binding: of those on streams that bind.
    """

    def __init__(self, asked: Asked, moved: frozenset[str]) -> None:
        self.asked, self.moved = asked, moved
        streams = [Stream(asked.problem.nodes[v].name) for v in asked.problem.collectives]
        self.problem = apply(asked.problem, [one for one in streams if one.collective in moved], asked.prices)
        self.keys = keys_of(self.problem, asked.alike)
        self.time_us: BatchTime = batch_time(self.problem, asked.prices)
        binding = self._busy_groups()
        self.binding = {v: key for v, key in self.keys.items() if key.group in binding}
        self.windows = Windows(self.problem, self.problem.original_order)

    def _busy_groups(self) -> list[str]:
        nodes, busy = self.problem.nodes, dict.fromkeys(self.problem.groups, 0.0)
        for v in self.problem.collectives:
            busy[nodes[v].group or ""] += nodes[v].time_us
        return [group for group, us in busy.items() if us >= BINDS * max(busy.values())]

    def rewrites(self, groups: Sequence[Sequence[NodeId]], form: Form) -> tuple[Rewrite, ...]:
        """Buckets of those that are several; then what moves to the second communicator."""
        nodes = self.problem.nodes
        buckets = [Bucket(tuple(nodes[v].name for v in sorted(ids)), form) for ids in groups if len(ids) > 1]
        inside = {name for bucket in buckets for name in bucket.members}
        names = [bucket.name for bucket in buckets if bucket.members[0] in self.moved]
        names += [nodes[v].name for v in self.problem.collectives if nodes[v].name in self.moved - inside]
        return (*buckets, *map(Stream, names))

    def least_us(self, groups: Sequence[Sequence[NodeId]]) -> float:
        """No step with these buckets is shorter: all compute, or the busiest stream."""
        nodes = self.problem.nodes
        busy = dict.fromkeys(self.problem.groups, 0.0)
        inside = {v for ids in groups for v in ids}
        for v in self.problem.collectives:
            if v not in inside:
                busy[nodes[v].group or ""] += nodes[v].time_us
        for ids in groups:
            key = self.keys[ids[0]]
            busy[key.group] += self.time_us(key, sum(nodes[v].bytes for v in ids))
        return max(sum(self.problem.compute_us), *busy.values())


def search(asked: Asked, wanted: Wanted, step_us: float) -> Found:
    """Try what may pay.

    Args:
        asked: The problem, prices, the budget.
        wanted: What may be tried.
        step_us: Of the best order without rewrites.
    """
    found = Found(step_us)
    graphs = [Graph(asked, frozenset())]
    if wanted.streams and (moved := _reductions(asked.problem)):
        graphs.append(Graph(asked, moved))
    for graph in graphs:
        _search(graph, wanted, found)
    if found.best is not None and len(wanted.forms) > 1:
        other = wanted.forms[1]
        again = tuple(Bucket(r.members, other) if isinstance(r, Bucket) else r for r in found.best.rewrites)
        what = f"{found.best.what}, {other}"
        found.see(tried(asked, what, again, asked.problem.original_order, found.best_us, found.policies()))
    return found


def _search(graph: Graph, wanted: Wanted, found: Found) -> None:
    """Caps, batches, then caps of parts around the best caps."""
    asked, form = graph.asked, wanted.forms[0]
    on = " on two streams" if graph.moved else ""
    if graph.moved:
        found.see(
            tried(
                asked,
                "reductions on a second stream",
                graph.rewrites((), form),
                asked.problem.original_order,
                found.best_us,
                found.policies(),
            )
        )
    if not wanted.buckets:
        return
    best_caps: tuple[float, ...] = ()
    for cap in CAPS:
        if _by_size(graph, found, (float(cap),) * PARTS, form, f"buckets of up to {cap} latencies{on}"):
            best_caps = (float(cap),) * PARTS
    for cap, order, groups in _batches(graph, asked.budget_bytes):
        what = f"what waits goes together, up to {cap} latencies{on}"
        found.see(tried(asked, what, graph.rewrites(groups, form), order, found.best_us, found.policies()))
    for part in range(PARTS) if best_caps else ():
        for factor in (1.5, 0.5):
            caps = tuple(cap * factor if at == part else cap for at, cap in enumerate(best_caps))
            what = f"buckets of up to {', '.join(f'{cap:g}' for cap in caps)} latencies in parts{on}"
            if _by_size(graph, found, caps, form, what):
                best_caps = caps
                break


def _by_size(graph: Graph, found: Found, caps: tuple[float, ...], form: Form, what: str) -> bool:
    asked = graph.asked
    order = asked.problem.original_order
    groups = neighbours(graph.problem, order, graph.binding, graph.time_us, caps, graph.windows)
    least_us = graph.least_us(groups)
    rewrites = graph.rewrites(groups, form)
    if least_us >= found.best_us:
        why_not = f"its busiest stream alone takes {least_us:.0f} us"
        return found.see(Trial(what, rewrites, why_not=why_not))
    return found.see(tried(asked, what, rewrites, order, found.best_us, found.policies()))


def _batches(graph: Graph, budget_bytes: int) -> Iterator[tuple[int, Order, list[list[NodeId]]]]:
    """Orders of the problem in which what waits goes together, with what went together."""
    if graph.problem.contention:
        return  # batches know streams of their own only
    urgent = without_latency(graph.problem, graph.keys, graph.time_us)
    reference = Reference(urgent, urgent.original_order)
    for cap, policy in BATCHES:
        streams = BatchingStreams(graph.problem, graph.keys, graph.time_us, cap)
        run = list_schedule(reference, np.array(budget_bytes, dtype=np.int64), policy, times=streams)
        if isinstance(run, Candidate):
            yield cap, run.order, [batch.members for batch in streams.batches if batch.key is not None]


def _reductions(problem: Problem) -> frozenset[str]:
    """Names of what reduces in groups that gather, too: the two would share a stream."""
    nodes = problem.nodes
    gathering = {nodes[v].group for v in problem.collectives if "gather" in nodes[v].op}
    return frozenset(
        nodes[v].name for v in problem.collectives if "reduce" in nodes[v].op and nodes[v].group in gathering
    )
