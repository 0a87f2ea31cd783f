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

What is tried, from the order that promises most; then what was best, from the original one::

    deferred      compute behind the last launch, its collectives together (:func:`defer_compute`)
    neighbours    neighbours in the order, as long as a bucket takes no longer than a cap, from small to large caps
    batches       what waits for its stream goes together
    parts         larger or smaller caps in parts of the step, one by one
    streams       all of it with reductions on a second communicator, where that is asked for

A cap is a time, a multiple of the latency: by 16 latencies, a sixteenth of a full bucket's time is latency, on every
group and at every speed of the network. A candidate that cannot win by a simple bound is not scheduled.

**The end of a step**: compute deferred until nothing is left to hide the last collectives behind. When all compute is
done, the last collectives still take their time. A weight gradient that has been computed long before, and takes longer
than its own reduce_scatter, hides a part of it::

    compute       |= wgrad =|===== chain =====|            all before the last launch starts sooner, the end comes
    group stream     |= u =|                  |=== v ===|  sooner by the compute deferred, less what its own
                                                           collective takes behind the others
    compute       |===== chain =====|= wgrad =|
    group stream                    |=== v ===|= u =|

Two machines in a row: of jobs of compute, then communication, those come last whose communication is shortest
(S. M. Johnson, *Optimal two- and three-stage production schedules*, 1954). A job is deferred with all that needs it and
keeps what it uses alive until the end; as many as memory admits, those first that hide most.
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
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.runs import EARLY, WHILE_STALLED
from overlap_sched.scheduler.task import TUNING, Reference
from overlap_sched.simulate.clock import PlainClock, StepTimes
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import Alike, ProblemMaker, apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Bucket, Form, Rewrite, Stream
from overlap_sched.transform.search import RewriteSearch, Trial

SMALL_BYTES, LARGE_BYTES = 2**16, 2**28
"""What a collective of so few bytes takes is latency; what one of so many takes has next to none in it."""
CAPS = (32, 48, 64, 96, 16, 8, 4)
"""Of buckets of neighbours, in latencies; once one has been found good, most small ones cannot win by the bound."""
BATCHES = ((32, EARLY), (8, EARLY), (32, WHILE_STALLED))
"""Of batches of what waits: caps in latencies, and the policy of the run."""
NEARLY = 1.003
"""A run in batches that is longer by more than this is not scheduled once more with its batches as buckets."""
PARTS = 4
"""Parts of the step that may have caps of their own."""
BINDS = 0.5
"""Neighbours are merged on streams that are at least this part as busy as the busiest."""
LONGEST = 16
"""So many nodes (casts, pads, views) may lie between a collective and its parameter."""


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
        label = "" if alike is None else alike[draft.name(one.launch)]
        keys[one.launch] = Key(one.op, one.group, label, level)
    return keys


def batch_time(problem: Problem, prices: Prices) -> BatchTime:
    """Return the times of batches, each priced once."""

    @cache
    def time_us(op: str, group: str, nbytes: int) -> float:
        return prices.collective_us(op, nbytes, problem.groups[group])

    return lambda key, nbytes: time_us(key.op, key.group, nbytes)


def added_us(node: Node, key: Key, time_us: BatchTime) -> float:
    """Return what a collective of a key adds to a large batch."""
    return min(node.time_us, time_us(key, LARGE_BYTES) / LARGE_BYTES * node.bytes)


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
        of = v if node.kind is Kind.COLLECTIVE else node.collective
        if of is not None:
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
        for _ in range(LONGEST):
            following = before[at] if gathers else behind[at]
            if len(following) != 1 or nodes[following[0]].kind is Kind.COLLECTIVE:
                break
            was, (at,) = at, following
            if nodes[at].kind is (Kind.INPUT if gathers else Kind.OUTPUT):
                found[v] = at if gathers else nodes[at].deps.index(was)
                break
    return found


def try_buckets(asked: RewriteSearch, forms: Sequence[Form], streams: bool) -> None:
    """Try buckets in the first of the forms, and second streams."""
    if forms:
        BucketSearch(asked).run(forms[0])
    names = (asked.problem.nodes[v].name for v in reductions(asked.problem)) if streams else ()
    if moved := frozenset(name for name in names if not asked.refuses(Stream(name))):
        BucketSearch(asked, moved).run(forms[0] if forms else None)


class Base(NamedTuple):
    """An order that rewrites start from, its windows, and collectives behind its last launch, with their compute."""

    order: Order
    windows: "Windows"
    deferred: frozenset[NodeId] = frozenset()


class BucketSearch:
    """What is tried of one graph, with some of its reductions on a second stream.

    Attributes:
        problem: With the groups of this variant; ids are those of the problem asked about.
        moved: Names of the collectives on a second communicator.
        bases: Orders that candidates start from, the one that promises most first; the original one, or one that fits,
            last; before it, the same with compute deferred that hides its last launch.
        keys: Of all that may be bucketed. binding: of those on streams that bind.
    """

    def __init__(self, asked: RewriteSearch, moved: frozenset[str] = frozenset()) -> None:
        self.asked, self.moved = asked, moved
        names = (asked.problem.nodes[v].name for v in asked.problem.collectives)
        streams = [Stream(name) for name in names if name in moved]
        self.problem = apply(asked.problem, streams, asked.prices) if streams else asked.problem
        self.keys = keys_of(self.problem, asked.alike, asked.ops)
        self.time_us = batch_time(self.problem, asked.prices)
        self._host_us, self._places = host_times(self.problem), places_of(self.problem)
        busy = self._busy_us(())
        most_us = max(busy.values(), default=0.0)
        self.binding = {v: key for v, key in self.keys.items() if busy[key.group] >= BINDS * most_us}

        original = asked.fits or self.problem.original_order
        self.bases = [Base(original, windows_of(self.problem, original))]
        last_us = self.problem.nodes[self.problem.collectives[-1]].time_us
        order, late = defer_compute(LiveRanges(self.problem), original, asked.budget_bytes, last_us, self._added_us)
        if late:
            self.bases.insert(0, Base(order, windows_of(self.problem, order), late))

    def run(self, form: Form | None) -> None:
        """Try all; ``form``: of buckets, ``None``: none are tried."""
        (first, *others), state = self.bases, self.asked.state
        if self.moved:
            self._try("reductions", (), None, first.order)
        if form is None:
            return
        self._try_deferred(form, first)
        best_caps, too_large = tuple[float, ...](), math.inf
        for cap in CAPS:
            caps = (float(cap),) * PARTS
            if cap >= too_large:  # what does not fit before anything is moved, fits no better in larger buckets
                continue
            if self._try_caps(caps, form, first):
                best_caps = caps
            elif state.trials and state.trials[-1].over_bytes > 0:
                too_large = cap
        best_batch = self._try_batches(form, first, BATCHES)
        for part in range(PARTS) if best_caps and best_batch is None else ():
            for factor in (1.5, 0.5):
                caps = tuple(cap * factor if at == part else cap for at, cap in enumerate(best_caps))
                if self._try_caps(caps, form, first):
                    best_caps = caps
                    break
        for base in others:
            if best_batch is not None:
                self._try_batches(form, base, (best_batch,))
            elif best_caps:
                self._try_caps(best_caps, form, base)

    def rewrites(self, groups: Sequence[Sequence[NodeId]], form: Form | None) -> tuple[Rewrite, ...]:
        """Return buckets of the groups of several; then what moves to the second communicator."""
        nodes = self.problem.nodes
        merged = [packed(ids, self._places) for ids in groups if form is not None and len(ids) > 1]
        buckets = [Bucket(tuple(nodes[v].name for v in ids), form or "copied") for ids in merged]
        inside = {name for bucket in buckets for name in bucket.members}
        names = [bucket.name for bucket in buckets if bucket.members[0] in self.moved]
        names += [nodes[v].name for v in self.problem.collectives if nodes[v].name in self.moved - inside]
        return (*buckets, *map(Stream, names))

    def least_us(self, groups: Sequence[Sequence[NodeId]]) -> float:
        """Return a bound on the step with these buckets: all compute, or the busiest stream."""
        saved_us = sum(self._host_us.get(v, 0.0) for ids in groups if len(ids) > 1 for v in ids)
        return max(sum(self.problem.compute_us) - saved_us, *self._busy_us(groups).values())

    def _busy_us(self, groups: Sequence[Sequence[NodeId]]) -> dict[str, float]:
        nodes, busy = self.problem.nodes, dict.fromkeys(self.problem.groups, 0.0)
        inside = {v for ids in groups for v in ids}
        for v in self.problem.collectives:
            if v not in inside:
                busy[nodes[v].group or ""] += nodes[v].time_us
        for ids in groups:
            key = self.keys[ids[0]]
            busy[key.group] += self.time_us(key, sum(nodes[v].bytes for v in ids))
        return busy

    def _added_us(self, v: NodeId) -> float:
        """Return what a collective adds to a large batch; all its time where it goes alone."""
        node, key = self.problem.nodes[v], self.keys.get(v)
        return node.time_us if key is None else added_us(node, key, self.time_us)

    def _try_deferred(self, form: Form, base: Base) -> None:
        """Put what is deferred on the stream of the last launch into one bucket or two: the second is shorter.

        Alone it takes no more off the step than the last launch takes: tried where that is enough.
        """
        last, late = self.problem.nodes[self.problem.collectives[-1]], defaultdict[Key, list[NodeId]](list)
        for v in base.order:
            if v in base.deferred and v in self.keys and self.keys[v].group == last.group:
                late[self.keys[v]].append(v)
        for parts in (1, 2) if late and self.asked.state.best_us - last.time_us <= self.asked.state.enough_us else ():
            halves = [half for ids in late.values() for half in (ids[: len(ids) // parts], ids[len(ids) // parts :])]
            what = f"compute behind the last launch, its collectives in {parts}"
            self._try(what, [half for half in halves if half], form, base.order)

    def _try_caps(self, caps: tuple[float, ...], form: Form, base: Base) -> bool:
        each = f"{caps[0]:g}" if len(set(caps)) == 1 else f"{', '.join(f'{cap:g}' for cap in caps)} (in parts)"
        groups = neighbours(self.problem, base.order, self.binding, self.time_us, caps, base.windows)
        return self._try(f"buckets of up to {each} latencies", groups, form, base.order)

    def _try_batches(self, form: Form, base: Base, batches: Sequence[tuple[int, Policy]]) -> tuple[int, Policy] | None:
        """Return the best batch; ``None`` where none was better than what there was."""
        best, state = None, self.asked.state
        if self.problem.contention or state.enough:
            return best  # batches know streams of their own only
        reference = Reference(without_latency(self.problem, self.keys, self.time_us), base.order)
        budget = np.array(self.asked.budget_bytes, dtype=np.int64)
        for cap, policy in batches:
            streams = BatchingStreams(self.problem, self.keys, self.time_us, cap)
            run = list_schedule(reference, budget, policy, beat_us=state.best_us * NEARLY, clock=streams)
            state.runs_left -= 1
            if run.made is not None and run.made.step_us < state.best_us * NEARLY:
                groups = [batch.members for batch in streams.batches if batch.key is not None]
                what = f"what waits goes together, up to {cap} latencies"
                if self._try(what, groups, form, run.made.order):
                    best = (cap, policy)
        return best

    def _try(self, what: str, groups: Sequence[Sequence[NodeId]], form: Form | None, order: Order) -> bool:
        """Try them unless the busiest stream alone takes too long; tell whether it is the best now."""
        what += " on two streams" if self.moved else ""
        rewrites, least_us = self.rewrites(groups, form), self.least_us(groups)
        if least_us < self.asked.state.best_us:
            return self.asked.attempt(what, rewrites, order)
        if self.asked.state.is_new(rewrites, order):
            why_not = f"its busiest stream alone takes {least_us:.0f} us"
            self.asked.state.note(Trial(what, (*self.asked.done, *rewrites), why_not=why_not))
        return False


class Windows(NamedTuple):
    """Between which positions of an order each collective can be launched without moving compute of any weight.

    A collective joins a bucket only if all that it needs, but for cheap preparations, runs before the first use of what
    is in the bucket already::

        order     cast w1  cast w2  mm w1  mm w2  wgrad  mm w3 ...
        w1, w2    ready at once; w1 is used at `mm w1`: w2 joins, its cast is pulled ahead
        an activation of `mm w1` that is gathered for `mm w3` cannot join: it is ready after the first use of w1

    Attributes:
        ready: Per node id, the last position of compute of weight that it needs (-1: none).
        first_use: Per collective, the first position of a node that uses a wait of it; the end where only outputs do.
    """

    ready: Sequence[Position]
    first_use: Mapping[NodeId, Position]


def windows_of(problem: Problem, order: Order) -> Windows:
    """Find the windows of all collectives of an order. Linear."""
    nodes, compute_us, position = problem.nodes, problem.compute_us, positions(order)
    weight_us, ready, first_use = TUNING.cheap * sum(compute_us), [-1] * len(nodes), dict[NodeId, Position]()
    for at, v in enumerate(order):
        heavy = nodes[v].kind is Kind.COMPUTE and compute_us[v] > weight_us
        ready[v] = at if heavy else max([ready[u] for u in problem.predecessors[v]], default=-1)
    for v, waits in problem.waits.items():
        users = (u for w in waits for u in problem.successors[w] if nodes[u].kind is not Kind.OUTPUT)
        first_use[v] = min((position[u] for u in users), default=len(order))
    return Windows(ready, first_use)


def neighbours(
    problem: Problem,
    order: Sequence[int],
    keys: Mapping[NodeId, Key],
    time_us: BatchTime,
    latencies: Sequence[float],
    windows: Windows,
) -> list[list[NodeId]]:
    """Return all collectives that have a key, in buckets of one or more, each in the order given.

    Args:
        problem: What they are of.
        order: A valid order.
        keys: Of the collectives that may go together.
        time_us: Of a bucket.
        latencies: The cap of each part of the launches (parts of as many each), in latencies of its key.
        windows: Of the order.
    """
    launches = [v for v in order if v in keys]
    open_buckets: dict[Key, list[NodeId]] = {}
    buckets: list[list[NodeId]] = []
    held: dict[Key, int] = {}
    used: dict[Key, Position] = {}
    for at, v in enumerate(launches):
        key, nbytes = keys[v], problem.nodes[v].bytes
        cap_us = latencies[at * len(latencies) // len(launches)] * time_us(key, SMALL_BYTES)
        if key in open_buckets and windows.ready[v] < used[key] and time_us(key, held[key] + nbytes) <= cap_us:
            open_buckets[key].append(v)
            held[key] += nbytes
            used[key] = min(used[key], windows.first_use[v])
        else:
            open_buckets[key] = [v]
            buckets.append(open_buckets[key])
            held[key], used[key] = nbytes, windows.first_use[v]
    return buckets


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
            most_us = self._latencies * time_us(key, SMALL_BYTES)
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


_GRAIN = 0.004
"""Compute of less than this part of the tail is not worth a move."""
_MOST_NODES = 16
"""A job has at most so many nodes: weight gradients are needed by few."""
_MOST_JOBS = 256
"""So many jobs are looked at."""
Job = tuple[set[NodeId], float, float]
"""Compute with all that needs it; microseconds of compute, and what its collectives add to the end."""


def defer_compute(
    live_ranges: LiveRanges, order: Order, budget_bytes: int, tail_us: float, added_us: Callable[[NodeId], float]
) -> tuple[Order, frozenset[NodeId]]:
    """Return an order with compute deferred behind its last launch, and the collectives deferred with it.

    Its own step may be longer: it is made for somebody who will put those collectives together.

    Args:
        live_ranges: Of the problem.
        order: A valid order with collectives, within the budget.
        budget_bytes: What the peak may be; the order made keeps to it.
        tail_us: How much is to be hidden.
        added_us: By collective, what it adds to the end: of one that goes together with others, less than its time.
    """
    problem, position = live_ranges.problem, positions(order)
    last, room = max(position[v] for v in problem.collectives), budget_bytes - live_ranges.profile(order)
    moved, kept, jobs, hidden_us = set[NodeId](), set[int](), list[tuple[float, list[NodeId]]](), 0.0
    for job, compute_us, comm_us in _find_jobs(problem, order, last, tail_us, added_us):
        if hidden_us >= tail_us:
            break
        uses = {s for v in job for s in problem.nodes[v].use if live_ranges.freed_size[s]}
        keeps = {s for s in uses - kept if problem.maker[s] not in job}
        held = np.zeros_like(room)
        for s in keeps:
            held[max(position[v] for v in live_ranges.users[s]) + 1 :] += live_ranges.freed_size[s]
        if not job & moved and (held <= room).all():
            room -= held
            moved |= job
            kept |= keeps
            jobs.append((comm_us, sorted(job)))
            hidden_us += compute_us - comm_us
    launched, completed = list[NodeId](), set[NodeId]()  # what waits for a job comes behind all of them
    for _, job_nodes in sorted(jobs, key=lambda one: -one[0]):
        for v in job_nodes:
            if problem.nodes[v].kind is Kind.WAIT or any(u in completed for u in problem.predecessors[v]):
                completed.add(v)
            else:
                launched.append(v)
    head, rest = ([v for v in part if v not in moved] for part in (order[: last + 1], order[last + 1 :]))
    others, ends = ([v for v in rest if (problem.nodes[v].kind is Kind.OUTPUT) is end] for end in (False, True))
    made = (*head, *launched, *others, *sorted(completed), *ends)
    if not jobs or int(live_ranges.profile(made).max()) > budget_bytes:
        return order, frozenset()
    return made, frozenset(moved.intersection(problem.collectives))


def _find_jobs(
    problem: Problem, order: Order, last: int, tail_us: float, added_us: Callable[[NodeId], float]
) -> list[Job]:
    """Jobs whose compute is longer than their communication: those that hide most of it first, the later first."""
    nodes, position, found = problem.nodes, positions(order), list[Job]()
    for v in reversed(order[:last]):
        job, todo = {v}, [v] if nodes[v].kind is Kind.COMPUTE else []
        while todo and len(job) <= _MOST_NODES:
            more = {w for w in problem.successors[todo.pop()] if w not in job and nodes[w].kind is not Kind.OUTPUT}
            job |= more
            todo += more
        comm_us = sum(added_us(w) for w in sorted(job) if nodes[w].kind is Kind.COLLECTIVE)
        compute_us = sum(nodes[w].time_us for w in sorted(job) if nodes[w].kind is Kind.COMPUTE)
        hides = compute_us > max(comm_us, _GRAIN * tail_us)
        if len(job) > _MOST_NODES or not hides or order[last] in job:
            continue
        before = {u for w in job for u in problem.predecessors[w]} - job
        after = {u for w in job for u in problem.successors[w]} - job
        if all(position[u] < last for u in before) and all(position[u] >= last for u in after):
            found.append((job, compute_us, comm_us))
    return sorted(found, key=lambda job: job[2] / job[1])[:_MOST_JOBS]
