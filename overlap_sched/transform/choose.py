"""Buckets and second streams: which collectives go together, and what reduces beside what is gathered.

::

    deferred       compute behind the last launch, its collectives together      variant
      -> neighbours     buckets up to a cap, from small caps to large ones            neighbours
      -> batches        what waits for its stream goes together                       batching
      -> parts          larger or smaller caps in parts of the step, one by one
      -> streams        all of it with reductions on a second communicator, where that is asked for

A candidate that cannot win by a simple bound is not scheduled.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from overlap_sched.problem import NodeId, Order
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.runs import EARLY, WHILE_STALLED
from overlap_sched.scheduler.task import Reference
from overlap_sched.transform.batching import BatchingStreams
from overlap_sched.transform.found import Found
from overlap_sched.transform.keys import Key, without_latency
from overlap_sched.transform.neighbours import neighbours
from overlap_sched.transform.rewrites import Form, Stream
from overlap_sched.transform.trial import Trial, TrialContext, tried
from overlap_sched.transform.variant import Base, ProblemVariant, bases
from overlap_sched.transform.wanted import Wanted, reductions

CAPS = (32, 48, 64, 96, 16, 8, 4)
"""Of buckets of neighbours, in latencies; once one has been found good, most small ones cannot win by the bound."""
BATCHES = ((32, EARLY), (8, EARLY), (32, WHILE_STALLED))
"""Of batches of what waits: caps in latencies, and the policy of the run."""
NEARLY = 1.003
"""A run in batches that is longer by more than this is not scheduled once more with its batches as buckets."""
PARTS = 4
"""Parts of the step that may have caps of their own."""


def try_buckets(asked: TrialContext, wanted: Wanted, found: Found) -> None:
    """Try buckets and second streams; ``found`` gets the results."""
    graphs = [ProblemVariant(asked, frozenset())] if wanted.forms else []
    if wanted.streams and (moved := _moved(asked)):
        graphs.append(_on_two_streams(asked, moved))
    for graph in graphs:
        _BucketSearch(graph, found, wanted.forms[:1]).run()


class _BucketSearch:
    """What is tried of one graph; ``found`` gets the results."""

    def __init__(self, graph: ProblemVariant, found: Found, forms: Sequence[Form]) -> None:
        self.graph, self.forms, self.found = graph, forms, found
        self.where = " on two streams" if graph.moved else ""

    def run(self) -> None:
        """From the base that promises most; then what was best, from the other."""
        first, *others = bases(self.graph)
        if self.graph.moved:
            self._try("reductions", (), first.order)
        if not self.forms:
            return
        self._deferred(first)
        best_caps = self._neighbours(first, CAPS)
        best_batch = self._batches(first, BATCHES)
        if best_caps and best_batch is None:
            best_caps = self._parts(first, best_caps)
        for base in others:
            if best_batch is not None:
                self._batches(base, (best_batch,))
            elif best_caps:
                self._by_size(base, best_caps)

    def _deferred(self, base: Base) -> None:
        """Put together what is deferred, on the stream of the last launch, in one bucket or two: the second starts
        later, and is shorter.

        Alone it takes no more off the step than the last launch takes: tried where that is enough.
        """
        last = self.graph.problem.nodes[self.graph.problem.collectives[-1]]
        if self.found.best_us - last.time_us > self.found.enough_us:
            return
        late: dict[Key, list[NodeId]] = {}
        for v in base.order:
            if v in base.deferred and v in self.graph.keys and self.graph.keys[v].group == last.group:
                late.setdefault(self.graph.keys[v], []).append(v)
        for parts in (1, 2) if late else ():
            groups = [part for ids in late.values() for part in parts_of(ids, parts)]
            self._try(f"compute behind the last launch, its collectives in {parts}", groups, base.order)

    def _neighbours(self, base: Base, caps: Sequence[int]) -> tuple[float, ...]:
        """The best caps; none where none was better than what there was."""
        best_caps: tuple[float, ...] = ()
        too_large = math.inf  # what does not fit before anything is moved, fits no better in larger buckets
        for cap in caps:
            if cap < too_large and self._by_size(base, (float(cap),) * PARTS):
                best_caps = (float(cap),) * PARTS
            elif self.found.trials and self.found.trials[-1].over_bytes > 0:
                too_large = min(too_large, cap)
        return best_caps

    def _parts(self, base: Base, best_caps: tuple[float, ...]) -> tuple[float, ...]:
        """Larger or smaller caps in one part of the step after the other."""
        for part in range(PARTS):
            for factor in (1.5, 0.5):
                caps = tuple(cap * factor if at == part else cap for at, cap in enumerate(best_caps))
                if self._by_size(base, caps):
                    best_caps = caps
                    break
        return best_caps

    def _by_size(self, base: Base, caps: tuple[float, ...]) -> bool:
        graph = self.graph
        each = f"{caps[0]:g}" if len(set(caps)) == 1 else f"{', '.join(f'{cap:g}' for cap in caps)} (in parts)"
        groups = neighbours(graph.problem, base.order, graph.binding, graph.time_us, caps, base.windows)
        return self._try(f"buckets of up to {each} latencies", groups, base.order)

    def _batches(self, base: Base, batches: Sequence[tuple[int, Policy]]) -> tuple[int, Policy] | None:
        """The best batch; none where none was better than what there was."""
        graph, best = self.graph, None
        if graph.problem.contention or self.found.enough:
            return None  # batches know streams of their own only
        urgent = without_latency(graph.problem, graph.keys, graph.time_us)
        reference = Reference(urgent, base.order)
        for cap, policy in batches:
            streams = BatchingStreams(graph.problem, graph.keys, graph.time_us, cap)
            budget = np.array(graph.asked.budget_bytes, dtype=np.int64)
            run = list_schedule(reference, budget, policy, beat_us=self.found.best_us * NEARLY, clock=streams)
            self.found.runs_left -= 1
            if run.made is not None and run.made.step_us < self.found.best_us * NEARLY:
                groups = [batch.members for batch in streams.batches if batch.key is not None]
                if self._try(f"what waits goes together, up to {cap} latencies", groups, run.made.order):
                    best = (cap, policy)
        return best

    def _try(self, what: str, groups: Sequence[Sequence[NodeId]], order: Order) -> bool:
        """Is it the best now? Where the best is good enough, nothing is tried."""
        graph, found = self.graph, self.found
        if found.enough:
            return False
        rewrites, least_us = graph.rewrites(groups, self.forms), graph.least_us(groups)
        if (rewrites, order) in found.known:
            return False
        found.known.add((rewrites, order))
        if least_us >= found.best_us:
            why_not = f"its busiest stream alone takes {least_us:.0f} us"
            return found.see(Trial(f"{what}{self.where}", (*graph.asked.done, *rewrites), why_not=why_not))
        return found.see(tried(graph.asked, f"{what}{self.where}", rewrites, order, found.best_us, found.policies()))


def parts_of(ids: Sequence[NodeId], parts: int) -> list[Sequence[NodeId]]:
    """About equal parts; fewer where there are not so many ids."""
    ends = [len(ids) * p // parts for p in range(parts + 1)]
    return [ids[begin:end] for begin, end in pairwise(ends) if begin < end]


def _on_two_streams(asked: TrialContext, moved: frozenset[str]) -> ProblemVariant:
    """Reductions on a second stream, but for those of compute deferred: their own stream is free by then."""
    graph = ProblemVariant(asked, moved)
    nodes, first = graph.problem.nodes, bases(graph)[0]
    last_group = nodes[graph.problem.collectives[-1]].group
    stay = {nodes[v].name for v in first.deferred if nodes[v].group == last_group}
    return ProblemVariant(asked, moved - stay) if stay else graph


def _moved(asked: TrialContext) -> frozenset[str]:
    """Names of what reduces in groups that gather, too, and may go to a second communicator."""
    names = [asked.problem.nodes[v].name for v in reductions(asked.problem)]
    return frozenset(name for name in names if not asked.refuses(Stream(name)))
