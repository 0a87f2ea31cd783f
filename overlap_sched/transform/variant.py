"""A graph whose collectives are about to go together: on which streams they run, and what may join what."""

from collections.abc import Sequence

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.deferred import deferred
from overlap_sched.transform.keys import BatchTime, added_us, batch_time, host_times, host_us, keys_of
from overlap_sched.transform.neighbours import Windows
from overlap_sched.transform.packing import packed, places_of
from overlap_sched.transform.rewrites import Bucket, Form, Rewrite, Stream
from overlap_sched.transform.trial import TrialContext

BINDS = 0.5
"""Neighbours are merged on streams that are at least this part as busy as the busiest."""


class ProblemVariant:
    """A problem with its reductions where they are to run: on their own stream, or on a second one.

    Attributes:
        problem: With the groups of this variant; ids are those of the problem asked about.
        moved: Names of the collectives on a second communicator.
        keys: Of all that may be bucketed. binding: of those on streams that bind.
    """

    def __init__(self, asked: TrialContext, moved: frozenset[str]) -> None:
        self.asked, self.moved = asked, moved
        streams = [Stream(asked.problem.nodes[v].name) for v in asked.problem.collectives]
        streams = [one for one in streams if one.collective in moved]
        self.problem = apply(asked.problem, streams, asked.prices) if streams else asked.problem
        self.keys = keys_of(self.problem, asked.alike, asked.ops)
        self.time_us: BatchTime = batch_time(self.problem, asked.prices)
        self._host_us, self._places = host_times(self.problem), places_of(self.problem)
        binding = self._busy_groups()
        self.binding = {v: key for v, key in self.keys.items() if key.group in binding}

    def _busy_groups(self) -> list[str]:
        nodes, busy = self.problem.nodes, dict.fromkeys(self.problem.groups, 0.0)
        for v in self.problem.collectives:
            busy[nodes[v].group or ""] += nodes[v].time_us
        return [group for group, us in busy.items() if us >= BINDS * max(busy.values())]

    def rewrites(self, groups: Sequence[Sequence[NodeId]], forms: Sequence[Form]) -> tuple[Rewrite, ...]:
        """Buckets of those that are several, in the first of the forms; then what moves to the second communicator."""
        nodes = self.problem.nodes
        buckets = [
            Bucket(tuple(nodes[v].name for v in packed(ids, self._places)), form)
            for form in forms[:1]
            for ids in groups
            if len(ids) > 1
        ]
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
        merged = {v for ids in groups if len(ids) > 1 for v in ids}
        return max(sum(self.problem.compute_us) - host_us(self._host_us, merged), *busy.values())

    def added_us(self, v: NodeId) -> float:
        """Return what collective v adds to a large batch; all its time where it goes alone."""
        node, key = self.problem.nodes[v], self.keys.get(v)
        return node.time_us if key is None else added_us(node, key, self.time_us)


class Base:
    """An order of a graph that rewrites start from.

    Attributes:
        order: Valid, within the budget. windows: between which of its positions collectives can be launched.
        deferred: Collectives behind the last launch of the original order, with their compute.
    """

    def __init__(self, problem: Problem, order: Order, deferred: frozenset[NodeId] = frozenset()) -> None:
        self.order, self.deferred = order, deferred
        self.windows = Windows(problem, order)


def bases(graph: ProblemVariant) -> list[Base]:
    """The original order, or one that fits; before it, the same with compute deferred that hides its last launch.

    A weight gradient whose own collective takes as long hides nothing alone; many that share one latency do::

        compute       |======= chain =======|= w1 =|= w2 =|= w3 =|
        group stream                        |======== v =========|= w1 w2 w3 =|
    """
    problem, asked = graph.problem, graph.asked
    original = asked.fits or problem.original_order
    tail_us = problem.nodes[problem.collectives[-1]].time_us
    order, late = deferred(LiveRanges(problem), original, asked.budget_bytes, tail_us, graph.added_us)
    return [*([Base(problem, order, late)] if late else []), Base(problem, original)]
