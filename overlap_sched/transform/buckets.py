"""Buckets and second streams: which collectives go together, and what reduces beside what is gathered.

Members of a bucket share a key, so that there is no path between them. Besides operator, group and what else must be
alike, a key has a *level*: of what gathers, how many collectives lie on the longest path before it; of what reduces,
behind it. Buckets of one level never wait for each other in a ring: what gathers a parameter has level 0, as what
reduces its gradient has, while activations that are gathered layer by layer have a level each::

    gather w -> mm -> gather (tp) -> mm -> reduce (tp) -> wgrad -> scatter dw
    level 0           level 1              level 1                 level 0

Where a sum is taken by several machines, how it is rounded depends on where its summands lie in the buffer. So members
of a bucket do not lie as they happen to be launched, but as the graph lists the parameters, as in FSDP2's buffers: what
gathers by the place of the one input that it is made of, what reduces by the place of the one output that it becomes.
Members with such a place come first, by it; the others, and those of one place, in the order of the problem.

What is tried, from the original order::

    neighbours    neighbours in the order, as long as a bucket takes no longer than a cap, of several caps
    batches       what waits for its stream goes together
    streams       all of it with reductions on a second communicator, where that is asked for

A cap is a time, a multiple of the latency: by 16 latencies, a sixteenth of a full bucket's time is latency, on every
group and at every speed of the network. A candidate that cannot win by a simple bound is not scheduled.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from overlap_sched.problem import OF_HOST, Kind, Node, NodeId, Order, Position, Problem
from overlap_sched.problem.precedence import positions
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.runs import EARLY, WHILE_STALLED
from overlap_sched.scheduler.task import TUNING, Reference
from overlap_sched.simulate.clock import PlainClock, StepTimes
from overlap_sched.transform.apply import Alike, ProblemMaker, apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Bucket, Form, Rewrite, Stream
from overlap_sched.transform.search import RewriteSearch
from overlap_sched.transform.tuning import TUNING as PLANS

BATCHES = ((32, EARLY), (8, EARLY), (32, WHILE_STALLED))
"""Of batches of what waits: caps in latencies, and the policy of the run."""


class Key(NamedTuple):
    """What members of a bucket share."""

    op: str
    group: str
    alike: str
    level: int


BatchTime = Callable[[Key, int], float]
"""Microseconds of a collective of a key and so many bytes."""


def keys_of(problem: Problem, alike: Alike | None, ops: Sequence[str] = BUCKETED) -> Mapping[NodeId, Key]:
    """Return the key of each collective that can be a member. Linear.

    Args:
        problem: What they are of.
        alike: Only those that are in it can; ``None``: it is not known, and all can.
        ops: Operators that may be bucketed.
    """
    draft = ProblemMaker(problem)
    launches = [node.kind is Kind.COLLECTIVE for node in problem.nodes]
    before, behind = [0] * len(launches), [0] * len(launches)
    for v, needs in enumerate(problem.predecessors):
        before[v] = max([before[u] + launches[u] for u in needs], default=0)
    for v in range(len(launches) - 1, -1, -1):
        behind[v] = max([behind[w] + launches[w] for w in problem.successors[v]], default=0)
    keys = {}
    for one in draft.singles(lambda node: node.op in ops and (alike is None or node.name in alike)):
        level = before[one.launch] if "gather" in one.op else behind[one.launch]
        keys[one.launch] = Key(one.op, one.group, "" if alike is None else alike[draft.name(one.launch)], level)
    return keys


def batch_time(problem: Problem, prices: Prices) -> BatchTime:
    """Return the times of batches, each priced once."""

    @cache
    def time_us(op: str, group: str, nbytes: int) -> float:
        return prices.collective_us(op, nbytes, problem.groups[group])

    return lambda key, nbytes: time_us(key.op, key.group, nbytes)


def added_us(node: Node, key: Key, time_us: BatchTime) -> float:
    """Return what a collective of a key adds to a large batch."""
    return min(node.time_us, time_us(key, PLANS.large_bytes) / PLANS.large_bytes * node.bytes)


def bucket_gain_us(problem: Problem, prices: Prices, alike: Alike | None, ops: Sequence[str]) -> tuple[float, float]:
    """No buckets take more off the shortest step: latency of streams; launches and waits of the compute stream.

    Latency is what collectives that may go together with another one take beyond what each adds to a large batch. Put
    every collective back to its own time, and nothing that comes after it is later by more than the difference.
    """
    keys, time_us, host_us = keys_of(problem, alike, ops), batch_time(problem, prices), host_times(problem)
    shared = Counter(keys.values())
    mates = [(v, problem.nodes[v]) for v, key in keys.items() if shared[key] > 1]
    latency_us = sum(node.time_us - added_us(node, keys[v], time_us) for v, node in mates)
    return latency_us, sum(host_us.get(v, 0.0) for v, _ in mates)


def host_times(problem: Problem) -> Mapping[NodeId, float]:
    """Return per collective what launching it and ending its waits takes of the compute stream, if anything. Linear."""
    nodes, times = problem.nodes, defaultdict[NodeId, float](float)
    for v, node in enumerate(nodes):
        if (of := v if node.kind is Kind.COLLECTIVE else node.collective) is not None:
            for u in node.deps:
                if nodes[u].op in OF_HOST:
                    times[of] += nodes[u].time_us
    return dict(times)


def without_latency(problem: Problem, keys: Mapping[NodeId, Key], time_us: BatchTime) -> Problem:
    """The problem with each collective at what it adds to a large batch: how urgent it is once many go together."""
    nodes = list(problem.nodes)
    for v, key in keys.items():
        nodes[v] = nodes[v]._replace(time_us=added_us(nodes[v], key, time_us))
    return replace(problem, nodes=tuple(nodes))


def reductions(problem: Problem) -> list[NodeId]:
    """Return what reduces in groups that gather, too: the two share a stream."""
    nodes = problem.nodes
    gathering = {nodes[v].group for v in problem.collectives if "gather" in nodes[v].op}
    return [v for v in problem.collectives if "reduce" in nodes[v].op and nodes[v].group in gathering]


def packed(members: Iterable[NodeId], places: Mapping[NodeId, int]) -> list[NodeId]:
    """Return members by the places of their parameters (:func:`places_of`)."""
    return sorted(members, key=lambda v: (places.get(v, math.inf), v))


def places_of(problem: Problem) -> dict[NodeId, int]:
    """Return per collective the place of its parameter: the input or output that alone leads to it, or comes of it."""
    nodes, found = problem.nodes, dict[NodeId, int]()
    before = [[u for u in node.deps if nodes[u].op not in OF_HOST] for node in nodes]
    behind: list[list[NodeId]] = [[] for _ in nodes]
    for v, node in enumerate(nodes):
        for u in node.deps if node.op not in OF_HOST else ():
            behind[u].append(v)
    for v in problem.collectives:
        gathers, at = "gather" in nodes[v].op, v
        while len(following := before[at] if gathers else behind[at]) == 1:
            was, (at,) = at, following
            if nodes[at].kind is (Kind.INPUT if gathers else Kind.OUTPUT):
                found[v] = at if gathers else nodes[at].deps.index(was)
            if nodes[at].kind is Kind.COLLECTIVE:
                break
    return found


def try_buckets(asked: RewriteSearch, forms: Sequence[Form], streams: bool) -> None:
    """Try buckets in the first of the forms, and second streams."""
    if forms:
        BucketSearch(asked).run(forms[0])
    names = (asked.problem.nodes[v].name for v in reductions(asked.problem)) if streams else ()
    if moved := frozenset(name for name in names if not asked.refuses(Stream(name))):
        BucketSearch(asked, moved).run(forms[0] if forms else None)


class BucketSearch:
    """What is tried of one graph, with some of its reductions on a second stream.

    Attributes:
        problem: With the groups of this variant; ids are those of the problem asked about.
        moved: Names of the collectives on a second communicator.
        order: That candidates start from: the original one, or one that fits.
        keys: Of all that may be bucketed.
    """

    def __init__(self, asked: RewriteSearch, moved: frozenset[str] = frozenset()) -> None:
        self.asked, self.moved = asked, moved
        names = (asked.problem.nodes[v].name for v in asked.problem.collectives)
        streams = [Stream(name) for name in names if name in moved]
        self.problem = apply(asked.problem, streams, asked.prices) if streams else asked.problem
        self.keys = keys_of(self.problem, asked.alike, asked.ops)
        self.time_us = batch_time(self.problem, asked.prices)
        self._places = places_of(self.problem)
        self.order = asked.fits or self.problem.original_order

    def run(self, form: Form | None) -> None:
        """Try all; ``form``: of buckets, ``None``: none are tried."""
        if self.moved:
            self._try("reductions", (), None, self.order)
        if form is None:
            return
        windows = windows_of(self.problem, self.order)
        for cap in PLANS.caps:
            self._try(f"buckets of up to {cap} latencies", self._neighbours(cap, *windows), form, self.order)
        self._try_batches(form)

    def _neighbours(
        self, latencies: float, ready: Sequence[Position], first_use: Mapping[NodeId, Position]
    ) -> list[list[NodeId]]:
        """Return all collectives that have a key, in buckets of one or more, each in the order given."""
        open_buckets, buckets = dict[Key, list[NodeId]](), list[list[NodeId]]()
        held, used = dict[Key, int](), dict[Key, Position]()
        for v in (v for v in self.order if v in self.keys):
            key, nbytes = self.keys[v], self.problem.nodes[v].bytes
            cap_us = latencies * self.time_us(key, PLANS.small_bytes)
            if key in held and ready[v] < used[key] and self.time_us(key, held[key] + nbytes) <= cap_us:
                open_buckets[key].append(v)
                held[key] += nbytes
                used[key] = min(used[key], first_use[v])
            else:
                open_buckets[key] = [v]
                buckets.append(open_buckets[key])
                held[key], used[key] = nbytes, first_use[v]
        return buckets

    def rewrites(self, groups: Sequence[Sequence[NodeId]], form: Form | None) -> tuple[Rewrite, ...]:
        """Return buckets of the groups of several; then what moves to the second communicator."""
        nodes = self.problem.nodes
        merged = [packed(ids, self._places) for ids in groups if form is not None and len(ids) > 1]
        buckets = [Bucket(tuple(nodes[v].name for v in ids), form or "copied") for ids in merged]
        inside = {name for bucket in buckets for name in bucket.members}
        names = [bucket.name for bucket in buckets if bucket.members[0] in self.moved]
        names += [nodes[v].name for v in self.problem.collectives if nodes[v].name in self.moved - inside]
        return (*buckets, *map(Stream, names))

    def _try_batches(self, form: Form) -> None:
        state = self.asked.state
        if self.problem.contention or state.enough:
            return  # batches know streams of their own only
        reference = Reference(without_latency(self.problem, self.keys, self.time_us), self.order)
        budget = np.array(self.asked.budget_bytes, dtype=np.int64)
        for cap, policy in BATCHES:
            streams = BatchingStreams(self.problem, self.keys, self.time_us, cap)
            run = list_schedule(reference, budget, policy, beat_us=state.best_us, clock=streams)
            state.runs_left -= 1
            if run.made is not None and run.made.step_us < state.best_us:
                groups = [batch.members for batch in streams.batches if batch.key is not None]
                self._try(f"what waits goes together, up to {cap} latencies", groups, form, run.made.order)

    def _try(self, what: str, groups: Sequence[Sequence[NodeId]], form: Form | None, order: Order) -> None:
        self.asked.attempt(f"{what} on two streams" if self.moved else what, self.rewrites(groups, form), order)


def windows_of(problem: Problem, order: Order) -> tuple[Sequence[Position], Mapping[NodeId, Position]]:
    """Between which positions of an order each collective can be launched without moving compute of any weight; linear.

    A collective joins a bucket only if all that it needs, but for cheap preparations, runs before the first use of what
    is in the bucket already::

        order     cast w1  cast w2  mm w1  mm w2  wgrad  mm w3 ...
        w1, w2    ready at once; w1 is used at `mm w1`: w2 joins, its cast is pulled ahead
        an activation of `mm w1` that is gathered for `mm w3` cannot join: it is ready after the first use of w1

    Returns:
        Per node id, the last position of compute of weight that it needs (-1: none).
        Per collective, the first position of a node that uses a wait of it; the end where only outputs do.
    """
    nodes, compute_us, position = problem.nodes, problem.compute_us, positions(order)
    weight_us, ready, first_use = TUNING.cheap * sum(compute_us), [-1] * len(nodes), dict[NodeId, Position]()
    for at, v in enumerate(order):
        heavy = nodes[v].kind is Kind.COMPUTE and compute_us[v] > weight_us
        ready[v] = at if heavy else max([ready[u] for u in problem.predecessors[v]], default=-1)
    for v, waits in problem.waits.items():
        users = (u for w in waits for u in problem.successors[w] if nodes[u].kind is not Kind.OUTPUT)
        first_use[v] = min((position[u] for u in users), default=len(order))
    return ready, first_use


@dataclass
class Batch:
    """Collectives that go together.

    Attributes:
        key: What they share. members: by id, as they came.
        bytes, time_us: Of all together. start_us: when they start on their stream, or are expected to.
    """

    key: Key | None
    members: list[NodeId] = field(default_factory=list)
    bytes: int = 0
    time_us: float = 0.0
    start_us: float = 0.0


class BatchingStreams(PlainClock):
    """Streams on which collectives go together.

    As databases commit in groups: an idle stream starts what comes at once; a busy one lets launches pile up, and takes
    all of one kind together when it is free. So nothing is merged where nothing waits::

        compute       | f 20 | g 20 | h 20 | ...           scatters of f, g, h become ready at 20, 40, 60
        alone         .......|=== f ===|=== g ===|=== h ===|
        together      .......|=== f ===|==== g h ====|      g and h wait while f runs: they start when it is done

    What waits has not started, so to join it delays no start. It does delay the end of those that it joins, so no batch
    takes longer than a cap.

    Attributes:
        finish_us: Per collective launched. batches: all so far, in the order in which the first of each was launched.
    """

    def __init__(self, problem: Problem, keys: Mapping[NodeId, Key], time_us: BatchTime, latencies: float) -> None:
        """Start with nothing launched.

        Args:
            problem: Without contention.
            keys: Of the collectives that may go together with others of their key.
            time_us: Of a batch.
            latencies: How many latencies of its key a batch may take.
        """
        super().__init__(StepTimes(problem))
        self.batches: list[Batch] = []
        self._nodes, self._keys, self._time_us, self._latencies = problem.nodes, keys, time_us, latencies
        self._waiting = defaultdict[str | None, list[Batch]](list)
        self._busy_until = defaultdict[str | None, float](float)  # by what has started

    def launch(self, v: NodeId) -> None:
        """Launch collective v now. What it joins is finished later."""
        node, key, time_us = self._nodes[v], self._keys.get(v), self._time_us
        waiting = self._waiting[node.group]
        while waiting and waiting[0].start_us < self.clock_us:
            started = waiting.pop(0)
            self._busy_until[node.group] = started.start_us + started.time_us
        batch = None
        if key is not None:
            most_us = self._latencies * time_us(key, PLANS.small_bytes)
            alike = (one for one in waiting if one.key == key)
            batch = next((one for one in alike if time_us(key, one.bytes + node.bytes) <= most_us), None)
        if batch is None:
            batch = Batch(key)
            waiting.append(batch)
            self.batches.append(batch)
        batch.members.append(v)
        batch.bytes += node.bytes
        batch.time_us = node.time_us if key is None else time_us(key, batch.bytes)
        at_us = max(self._busy_until[node.group], self.clock_us)
        for one in waiting:
            one.start_us, at_us = at_us, at_us + one.time_us
            self.finish_us.update(dict.fromkeys(one.members, at_us))
        self._free_us[self._times.stream[v]] = at_us

    def run(self, nodes: Sequence[NodeId]) -> None:
        """Run nodes, in this order."""
        for v in nodes:
            if self._nodes[v].kind is Kind.COLLECTIVE:
                self.launch(v)
            else:
                super().run((v,))
