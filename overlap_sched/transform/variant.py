"""A graph whose collectives are about to go together: on which streams they run, and how a bucket is packed.

Where a sum is taken by several machines, how it is rounded depends on where its summands lie in the buffer. So members
of a bucket do not lie as they happen to be launched, but as the graph lists the parameters, as in FSDP2's buffers::

    gather    what it gathers is made of one input of the graph      its place among the inputs
    reduce    what it gives becomes one output of the graph          its place among the outputs

AOTAutograd lists gradients as it lists parameters. Members with a place come first, by it; the others, and those of one
place, in the order of the problem.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.node import OF_HOST
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import apply
from overlap_sched.transform.deferral import admitted, with_deferred
from overlap_sched.transform.keys import BatchTime, added_us, batch_time, host_times, host_us, keys_of
from overlap_sched.transform.neighbours import Windows
from overlap_sched.transform.rewrites import Bucket, Form, Rewrite, Stream
from overlap_sched.transform.trial import TrialContext

LONGEST = 16
"""So many nodes (casts, pads, views) may lie between a collective and its parameter."""


def packed(members: Iterable[NodeId], places: Mapping[NodeId, int]) -> list[NodeId]:
    """Members by the places of their parameters (:func:`places_of`)."""
    return sorted(members, key=lambda v: (places.get(v, math.inf), v))


def places_of(problem: Problem) -> dict[NodeId, int]:
    """Per collective the place of its parameter among inputs or outputs, where it has one."""
    users: list[list[NodeId]] = [[] for _ in problem.nodes]
    for v, node in enumerate(problem.nodes):
        if node.op not in OF_HOST:
            for u in node.deps:
                users[u].append(v)
    found = {}
    for v in problem.collectives:
        place = _input(problem, v) if "gather" in problem.nodes[v].op else _output(problem, v, users)
        if place is not None:
            found[v] = place
    return found


def _input(problem: Problem, v: NodeId) -> int | None:
    """The input that alone leads to a node."""
    for _ in range(LONGEST):
        before = [u for u in problem.nodes[v].deps if problem.nodes[u].op not in OF_HOST]
        if len(before) != 1 or problem.nodes[before[0]].kind in (Kind.COLLECTIVE, Kind.WAIT):
            return None
        v = before[0]
        if problem.nodes[v].kind is Kind.INPUT:
            return v
    return None


def _output(problem: Problem, v: NodeId, users: Sequence[Sequence[NodeId]]) -> int | None:
    """The place of the output that alone comes of a node."""
    for _ in range(LONGEST):
        if len(users[v]) != 1 or problem.nodes[users[v][0]].kind is Kind.COLLECTIVE:
            return None
        user = problem.nodes[users[v][0]]
        if user.kind is Kind.OUTPUT:
            return user.deps.index(v)
        v = users[v][0]
    return None


def _last_launch(problem: Problem, order: Order) -> int:
    """The position of the last collective."""
    return max(at for at, v in enumerate(order) if problem.nodes[v].kind is Kind.COLLECTIVE)


def deferred(
    live_ranges: LiveRanges, order: Order, budget_bytes: int, tail_us: float, added_us: Callable[[int], float]
) -> tuple[Order, frozenset[int]]:
    """An order with compute deferred behind its last launch, and the collectives deferred with it.

    Its own step may be longer: it is made for somebody who will put those collectives together.

    Args:
        live_ranges: Of the problem.
        order: A valid order with collectives, within the budget.
        budget_bytes: What the peak may be; the order made keeps to it.
        tail_us: How much is to be hidden.
        added_us: By collective, what it adds to the end: of one that goes together with others, less than its time.
    """
    limit, last = np.array(budget_bytes, dtype=np.int64), _last_launch(live_ranges.problem, order)
    jobs = admitted(live_ranges, order, limit, last, tail_us, added_us)
    made = with_deferred(live_ranges.problem, order, last, jobs)
    if not jobs or bool((live_ranges.profile(made) > limit).any()):
        return order, frozenset()
    return made, frozenset(v for job in jobs for v in job.nodes).intersection(live_ranges.problem.collectives)


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
