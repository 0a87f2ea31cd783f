"""The graphs that a job's blocks name: each is read, ordered and measured once; and pairs of them, interleaved.

A forward that runs beside the backward of another micro-batch, in one graph of both that need nothing of each other::

    one behind the other   | b |..wait..| b |..wait..| f |..wait..| f |
    interleaved            | b |= f =| b |= f =|                          each computes while the other communicates

Such a graph may need as much memory as the backward and then the forward. While a pair runs it keeps what forward
gives and backward gives to its end, as torchtitan's multiplexed graphs do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from overlap_sched.judge.validate import JudgedOrder, measure
from overlap_sched.pipeline.halves import check_input_gradient, find_input_gradients, halve_backward
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.parts import join_beside


@dataclass(frozen=True)
class GraphBlock:
    """What a graph takes; bytes without parameters.

    Attributes:
        name: Of the graph.
        time_us: Its step, microseconds. exposed_us: of it, what compute waits for collectives.
        peak_bytes: The most that is live at once.
        given_bytes: Live when it starts. left_bytes: when it ends.
        pinned_bytes: Parameters.
    """

    name: str
    time_us: float
    exposed_us: float
    peak_bytes: int
    given_bytes: int
    left_bytes: int
    pinned_bytes: int

    def put_into(self, block: PipelineBlock, held_bytes: int) -> PipelineBlock:
        """A block with this time and memory, of which so much is counted elsewhere while it runs: saved, or kept."""
        timed = replace(block, time_us=self.time_us, exposed_us=self.exposed_us, graph=self.name)
        transient = max(self.peak_bytes - held_bytes, 0)
        return replace(timed, transient_bytes=transient, counted_bytes=self.pinned_bytes + held_bytes)


def graph_block(name: str, problem: Problem, run: JudgedOrder, parameter_bytes: int | None = None) -> GraphBlock:
    """Take what a block needs from a graph.

    Args:
        name: Of the graph.
        problem: The graph.
        run: The order in which it runs.
        parameter_bytes: How much of what is pinned is parameters; the rest counts as any other input. ``None``: all.
    """
    pinned = sum(storage.bytes for storage in problem.storages if storage.pinned)
    static = pinned if parameter_bytes is None else min(parameter_bytes, pinned)
    line, profile = run.timeline, run.profile
    given = sum(problem.storages[s].bytes for node in problem.nodes if node.kind is Kind.INPUT for s in node.alloc)
    peak, given, left = (nbytes - static for nbytes in (max(profile), given, profile[-1]))
    return GraphBlock(name, line.step_us, line.exposed_us, peak, given, left, static)


class GraphSource(NamedTuple):
    """A graph as a job names it: its file, and for a dump the cluster that it is priced for and its process groups."""

    name: str
    path: Path
    cluster: str | None
    groups: tuple[tuple[str, int], ...]


ReadGraph = Callable[[GraphSource], Problem]
Orderer = Callable[[Problem], Order]
"""An order of a problem, within its peak or what was asked for beyond it."""
HALVES = "to inputs", "to weights"
OFFERED = 5
"""So many nodes are offered as the gradient of a stage's input."""


def offer(names: Sequence[str]) -> str:
    """Words that offer some names, the first ones; empty where there are none."""
    more = f" and {len(names) - OFFERED} more" if len(names) > OFFERED else ""
    return f": {', '.join(names[:OFFERED])}{more}" if names else ""


@dataclass(frozen=True)
class MeasuredGraph:
    """A graph, or several as one, in its original order and in the one that it is to run in.

    Attributes:
        name: For people.
        before: As written; of a pair, each in its own order, backward in front of forward.
        ordered: As it is to run; the same as ``before`` where nothing is ordered.
    """

    name: str
    problem: Problem
    before: JudgedOrder
    ordered: JudgedOrder


class JobGraphs:
    """What has been read and measured so far.

    Attributes:
        graphs, pairs: By name.
        parts: By name, graphs that are not read: parts of others.
        notes: What a reader of the figures should know.
        offered: By graph of a backward that has no halves, nodes that may make the gradient of its input.
    """

    def __init__(self, read: ReadGraph, order: Orderer | None = None) -> None:
        """Take a function that reads a graph, and one that orders it; ``None``: all run as they are written."""
        self.read, self._order = cache(read), order
        self.graphs: dict[str, MeasuredGraph] = {}
        self.parts: dict[str, Problem] = {}
        self.notes: dict[str, None] = {}
        self.pairs: dict[tuple[str, str], MeasuredGraph] = {}
        self.offered: dict[str, list[str]] = {}

    def whole(self, source: GraphSource, parameter_bytes: int | None) -> GraphBlock:
        """Measure a graph; of what it pins so many bytes are parameters (``None``: all)."""
        return self._block(source.name, self._read(source), parameter_bytes)

    def halves(
        self, source: GraphSource, node: str, nbytes: int, parameter_bytes: int | None
    ) -> tuple[GraphBlock, GraphBlock] | None:
        """Measure a backward in two: what makes the gradient of the input, and all else.

        Args:
            source: The graph.
            node: Makes that gradient; empty: the only one that may; ``None`` where there are others, or none.
            nbytes: Of that gradient; 0: not known.
            parameter_bytes: As of :meth:`whole`.

        Raises:
            ValueError: The node cannot be it; the message says why, and which may.
        """
        problem = self._read(source)
        names = [problem.nodes[v].name for v in find_input_gradients(problem, nbytes)] if nbytes else []
        if not node and len(names) != 1:
            self.offered |= {source.name: names} if names else {}
            return None
        chosen = node or names[0]
        try:
            found = halve_backward(problem, check_input_gradient(problem, chosen, nbytes))
        except ValueError as error:
            if not node:
                return None
            remedy = f"Name what makes the gradient of the input{offer(names)}"
            if nbytes and not names:
                remedy = "No node makes so many: correct the output of the stage before"
            raise ValueError(f"{node!r:.40}: {error}. {remedy}") from None
        first, second = (
            self._block(f"{source.name} {which} ({chosen})", half, parameter_bytes)
            for which, half in zip(HALVES, found, strict=True)
        )
        return first, second

    def _read(self, source: GraphSource) -> Problem:
        return self.parts.get(source.name) or self.read(source)

    def _block(self, name: str, problem: Problem, parameter_bytes: int | None) -> GraphBlock:
        if name not in self.graphs:
            self.graphs[name] = self._measured(name, problem)
        graph = self.graphs[name]
        return graph_block(name, graph.problem, graph.ordered, parameter_bytes)

    def _measured(self, name: str, problem: Problem) -> MeasuredGraph:
        before = measure(problem, problem.original_order)
        ordered = before if self._order is None else measure(problem, self._order(problem))
        return MeasuredGraph(name, problem, before, ordered)

    def with_pairs(self, job: PipelineJob, tell: Callable[[str], None]) -> PipelineJob:
        """The job with what each forward takes beside each backward, where graphs of both were measured.

        Nothing where nothing is ordered: then one runs behind the other.
        """
        found: dict[tuple[int, int], PipelineBlock] = {}
        named = [{one.forward.graph for one in job.stages}, {one.backward.graph for one in job.stages}]
        count = prod(len(names & self.graphs.keys()) for names in named)
        for f, b in product(range(len(job.stages)), repeat=2) if self._order is not None else ():
            ahead, back = job.stages[f], job.stages[b]
            both = ahead.forward.graph, back.backward.graph
            if not all(name in self.graphs for name in both):
                continue
            if both not in self.pairs:
                tell(f"interleaving graphs, pair {len(self.pairs) + 1} of {count}")
                self.pairs[both] = self.interleaved(*both)
            pair = self.pairs[both]
            counted = ahead.forward.counted_bytes + back.backward.counted_bytes
            line, transient = pair.ordered.timeline, max(max(pair.ordered.profile) - counted, 0)
            found[f, b] = PipelineBlock(line.step_us, transient, exposed_us=line.exposed_us)
        return replace(job, pairs=found)

    def interleaved(self, ahead: str, back: str) -> MeasuredGraph:
        """Order a forward beside a backward; both have been measured, and it is no longer than both in their orders."""
        apart = [self.graphs[name] for name in (back, ahead)]
        both = join_beside(*(one.problem for one in apart))
        number = {(part, v): k for k, (part, v) in enumerate(zip(both.part, both.rank, strict=True))}
        own = [number[c, v] for c, one in enumerate(apart) for v in one.ordered.order if (c, v) in number]
        written = self._measured(f"{ahead} beside {back}", both.problem)
        before = measure(both.problem, (*own, len(both.rank) - 1))
        ordered = min(written.ordered, before, key=lambda one: one.timeline.step_us)
        return replace(written, before=before, ordered=ordered)
