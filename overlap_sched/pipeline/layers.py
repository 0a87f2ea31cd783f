"""From the forward and the backward graph of a whole model to its layers, and to stages of whole layers.

What follows from the input (of backward: from the gradient that comes in) is a chain of *waists*, values through which
all that comes later goes; between two of them is a segment. A layer is some neighbouring segments, so that the hidden
state is all that goes from one layer to the next::

    forward    tokens -> embedding -o- attention -o- MLP -o- attention -o- MLP -o- norm -> mm -> logits
    segments               0             1            2        1            2         3   4 ...
    layers             embedding       |   layer 1        |   layer 2           |   head

Which segments make a layer is said by names of modules (``layers.3.attention``) where the graph has any. Else it is
found: segments are alike that have the same operators, and the layers are the longest repetition of some of them one
behind the other, with neighbours that are nearly alike (a dense layer in front of layers of experts).

A node that does not follow from the input (a gathered parameter) is where it is first needed. Values of forward that
backward uses, saved or computed again, have the same names there: they say which layer a segment of backward is of.
"""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.layout import Cut
from overlap_sched.problem import Kind, Node, NodeId, Problem, StorageId
from overlap_sched.problem.parts import split_problem

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
ALIKE = 0.4
"""Neighbours of the repetition are layers, too, with so much of all operators of both in common."""


@dataclass(frozen=True)
class ModelStage:
    """Neighbouring layers of a model: their graphs, and what goes in and out, in bytes.

    Attributes:
        name: ``"embedding, layers 1 to 8"``.
        forward, backward: Inputs are what comes in, what was saved, and parameters (pinned).
        gradient: The node of backward that makes the gradient of what the first of its layers receives; ``""``: of the
            embedding alone, which receives none.
        output_bytes: What forward sends to the next stage. buffer_bytes: of it, what is not saved besides.
        gradient_bytes: What backward sends to the previous stage.
        saved_bytes: From forward to backward. parameter_bytes: all that is pinned.
    """

    name: str
    forward: Problem
    backward: Problem
    gradient: str
    output_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    saved_bytes: int
    parameter_bytes: int


@dataclass(frozen=True)
class CutModel:
    """A model in stages.

    Attributes:
        layers: How many it has, without embedding and head.
        found_by: ``"names of modules"`` or ``"repeated operators"``.
        stages: In the order of forward.
        extra: What goes between stages besides the hidden state and its gradient: names of nodes of either graph.
    """

    layers: int
    found_by: str
    stages: tuple[ModelStage, ...]
    extra: tuple[str, ...]

    @property
    def words(self) -> str:
        """``32 layers (repeated operators) in stages: embedding, layers 1 to 16 | layers 17 to 32, head``."""
        names = " | ".join(stage.name for stage in self.stages)
        more = f"; sent besides the hidden state and its gradient: {', '.join(self.extra)}" if self.extra else ""
        return f"{self.layers} layers ({self.found_by}) in stages: {names}{more}"


def cut_model(
    forward: Problem, backward: Problem, layers: Sequence[int] | None = None, stages: int | None = None
) -> CutModel:
    """Cut both graphs of a model into stages; each node is in one of them.

    Args:
        forward, backward: Of one training step, as two dumps give them: what forward saves has the same names.
        layers: How many layers each stage has. The first has the embedding, too, and the last the head.
        stages: How many stages instead, as even in time as whole layers allow. ``None``: one for each layer, one for the
            embedding and one for the head.

    Raises:
        PipelineError: No layers are found, the graphs are not of one model, or there are fewer layers than stages.
    """
    ahead = _chain(forward, [v for v, node in enumerate(forward.nodes) if node.kind is Kind.INPUT])
    settled = _settled(forward, ahead.depth)
    segments, found_by = _layers_of_segments(forward, ahead, settled)
    count = max(segments) - 1
    units = [segments[k] for k in settled]
    back, of_back = _backward_units(forward, units, backward, count)
    graphs = (forward, units), (backward, of_back)
    sizes = layers if layers is not None or stages is None else _even(count, stages, graphs)
    if sizes is not None and (sum(sizes) != count or min(sizes) < 1):
        asked = f"{stages} stages" if layers is None else f"layers = {[*layers]}"
        raise PipelineError(
            f"{asked}: {forward.name} has {count} layers, found by {found_by}. Give each stage a layer, or more, and all "
            "layers to some stage."
        )
    groups = _groups(sizes, count, {*units, *of_back})
    return CutModel(count, found_by, *_stages(groups, _Graph(forward, ahead, units), _Graph(backward, back, of_back)))


class _Chain(NamedTuple):
    """What follows from an input of a graph.

    Attributes:
        depth: Per node its segment; -1: it does not follow.
        waists: Per segment, the node at its end.
    """

    depth: list[int]
    waists: list[NodeId]


def _chain(problem: Problem, sources: Iterable[NodeId]) -> _Chain:
    """Of the source from which most follows, to the node that needs most."""
    nodes, count = problem.nodes, len(problem.nodes)
    touched = [{*node.alloc, *node.use} for node in nodes]
    flow = [
        [u for u in before if not touched[u].isdisjoint(node.use)] if node.kind is not Kind.OUTPUT else []
        for node, before in zip(nodes, problem.predecessors, strict=True)
    ]
    above, below = ([1 << v for v in range(count)] for _ in range(2))  # sets of nodes, as bits
    for v in range(count):
        for u in flow[v]:
            above[v] |= above[u]
    for v in reversed(range(count)):
        for u in flow[v]:
            below[u] |= below[v]
    source = max(sources, key=lambda v: below[v].bit_count())
    target = max((v for v in range(count) if below[source] >> v & 1), key=lambda v: above[v].bit_count())
    path = [v for v in range(source, target + 1) if (above[target] & below[source]) >> v & 1]
    last_user = {u: v for v in path for u in flow[v]}
    furthest, waists = last_user.get(source, source), list[NodeId]()
    for v in path[1:]:
        if furthest == v and nodes[v].kind is not Kind.COLLECTIVE:
            waists.append(v)
        furthest = max(furthest, last_user.get(v, v))
    ends, depth = set(waists[:-1]), list[int]()
    for v, before in enumerate(problem.predecessors):
        depth.append(max((depth[u] + (u in ends) for u in before if depth[u] >= 0), default=-1 + (v == source)))
    return _Chain(depth, waists or [source])


def _settled(problem: Problem, place: Sequence[int]) -> list[int]:
    """Where each node is: one without a place (-1) where it is first needed, else where the last is that it needs."""
    found, nodes = list(place), problem.nodes
    for v in reversed(range(len(nodes))):
        if found[v] < 0:
            users = [found[w] for w in problem.successors[v] if nodes[w].kind is not Kind.OUTPUT and found[w] >= 0]
            found[v] = min(users, default=-1)
    for v, before in enumerate(problem.predecessors):
        if found[v] < 0:
            found[v] = max((found[u] for u in before), default=0)
    return [max(one, 0) for one in found]


def _layers_of_segments(problem: Problem, chain: _Chain, settled: Sequence[int]) -> tuple[list[int], str]:
    """Per segment 0 (embedding), a layer from 1 on, or the number behind the last (head); and how they were found."""
    count, indices = len(chain.waists), dict[str, set[int]]()
    numbered = [(v, at) for v, node in enumerate(problem.nodes) if (at := _NUMBER.search(node.module))]
    for _, at in numbered:
        indices.setdefault(at.string[: at.start()], set()).add(int(at[1]))
    container = max(indices, key=lambda one: len(indices[one]), default="")
    if len(indices.get(container, ())) > 1:
        labels = dict[int, int]()
        for v, at in numbered:
            if at.string[: at.start()] == container:
                labels[settled[v]] = max(int(at[1]), labels.get(settled[v], 0))
        known = list(accumulate((labels.get(k, 0) for k in range(min(labels), max(labels) + 1)), max))
        number = {label: 1 + k for k, label in enumerate(sorted(set(known)))}
        layers = [number[label] for label in known]
        start, found_by = min(labels), f"names of modules ({container}.0, ...)"
    else:
        start, layers = _repeated(_operators(problem, chain))
        found_by = "repeated operators"
    if not layers:
        raise PipelineError(
            f"{problem.name}: no layers are found: no modules have numbers, and no sequence of operators repeats behind "
            "another. Give the forward graph of a whole model, or a [[stage]] for each stage."
        )
    return [*[0] * start, *layers, *[layers[-1] + 1] * (count - start - len(layers))], found_by


def _operators(problem: Problem, chain: _Chain) -> list[Counter[str]]:
    found = [Counter[str]() for _ in chain.waists]
    for node, k in zip(problem.nodes, chain.depth, strict=True):
        if k >= 0 and node.use and node.kind is not Kind.OUTPUT:
            found[k][node.op] += 1
    return found


def _repeated(segments: Sequence[Counter[str]]) -> tuple[int, list[int]]:
    """Where the repetition starts that has most nodes, and the layers of its segments."""
    best, found = 0.0, (0, list[int]())
    for period, first in product(range(1, len(segments) // 2 + 1), range(len(segments))):
        block = segments[first : first + period]
        if segments[first + period : first + 2 * period] != block or segments[max(first - period, 0) : first] == block:
            continue
        pattern = sum(block, Counter[str]())

        def likeness(at: int, period: int = period, pattern: Counter[str] = pattern) -> float:
            other = sum(segments[at : at + period], Counter[str]()) if 0 <= at <= len(segments) - period else Counter()
            return (pattern & other).total() / (pattern | other).total()

        start, end = first, first + period
        while likeness(start - period) >= ALIKE:
            start -= period
        while likeness(end) >= ALIKE:
            end += period
        nodes = pattern.total() * sum(likeness(at) ** 2 for at in range(start, end, period))  # two halves are not one
        if nodes > 1.01 * best:  # a longer period has to have more
            best, found = nodes, (start, [1 + k // period for k in range(end - start)])
    return found


def _backward_units(
    forward: Problem, units: Sequence[int], backward: Problem, count: int
) -> tuple[_Chain, list[int]]:
    """The chain of backward, and per node its unit."""
    of_name = {node.name: (unit, node.op) for node, unit in zip(forward.nodes, units, strict=True)}
    nodes = backward.nodes
    given = [v for v, node in enumerate(nodes) if node.kind is Kind.INPUT and node.name not in of_name]
    if not given:
        raise PipelineError(f"{backward.name}: no input is a gradient. Give the backward graph of {forward.name}.")
    chain, head = _chain(backward, given), count + 1
    votes, known = [Counter[int]() for _ in chain.waists], dict[NodeId, int]()
    for v, (node, before) in enumerate(zip(nodes, backward.predecessors, strict=True)):
        uses = [known[u] for u in before if u in known]
        if chain.depth[v] >= 0:
            votes[chain.depth[v]].update(uses)
        elif node.name in of_name or uses:
            known[v] = of_name[node.name][0] if node.name in of_name else max(uses)
    segments = [head] * len(votes)
    unit, cut = head, 0  # the segments from the cut on may be of the next unit
    for k, vote in enumerate(votes):
        lower = max(vote, key=lambda one: (vote[one], one), default=head)
        if lower < unit:
            cut = min(range(max(cut, 1), k + 1), key=lambda at: (_bytes_of(backward, chain.waists[at - 1]), -at))
            segments[cut:], unit = [lower] * (len(votes) - cut), lower
        cut = k + 1 if vote else cut
    if missing := sorted({*range(1, head)} - {*segments}):
        raise PipelineError(
            f"{backward.name}: nothing in it belongs to layer {missing[0]} of {forward.name}, which has {count}. Give "
            "the two graphs of one step."
        )
    place = list[int]()
    for node, depth in zip(nodes, chain.depth, strict=True):
        same, op = of_name.get(node.name, (head + 1, ""))
        place.append(head - (segments[depth] if depth >= 0 else same if op == node.op else head + 1))
    return chain, [head - one for one in _settled(backward, place)]


def _even(count: int, stages: int, graphs: Sequence[tuple[Problem, Sequence[int]]]) -> Cut:
    """How many layers each stage has so that squares of their times of compute add up to least; ``()``: too few."""
    times = [[0.0] * count for _ in graphs]
    for sums, (problem, units) in zip(times, graphs, strict=True):
        for time_us, unit in zip(problem.compute_us, units, strict=True):
            sums[min(max(unit - 1, 0), count - 1)] += time_us
    ends = [0.0, *accumulate(map(sum, zip(*times, strict=True)))]
    least: dict[int, tuple[float, Cut]] = {0: (0.0, ())}
    for _ in range(stages):
        least = {
            end: min((cost + (ends[end] - ends[start]) ** 2, (*cut, end - start)) for start, (cost, cut) in before)
            for end in range(1, count + 1)
            if (before := [one for one in least.items() if one[0] < end])
        }
    return least.get(count, (0.0, ()))[1]


def _groups(sizes: Sequence[int] | None, count: int, present: Collection[int]) -> list[range]:
    """The units of each stage."""
    if sizes is None:
        return [range(unit, unit + 1) for unit in range(count + 2) if unit in present]
    ends = [*accumulate(sizes)]
    ends[-1] += 1
    return [range(start + 1 if start else 0, end + 1) for start, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class _Graph:
    """A graph of the whole model, its chain, and per node its unit."""

    problem: Problem
    chain: _Chain
    units: Sequence[int]

    @cached_property
    def following(self) -> dict[str, NodeId]:
        """By name, all nodes that follow from the source."""
        both = enumerate(zip(self.problem.nodes, self.chain.depth, strict=True))
        return {node.name: v for v, (node, k) in both if k >= 0 and node.kind not in (Kind.INPUT, Kind.OUTPUT)}

    @property
    def returned(self) -> set[StorageId]:
        """What the whole graph returns."""
        return {s for node in self.problem.nodes if node.kind is Kind.OUTPUT for s in node.use}

    def split(self, part: Sequence[int], returned: Sequence[Collection[StorageId]]) -> list[Problem]:
        """Its parts; what follows from the source goes from part to part."""
        sent = [s for v in self.following.values() for s in self.problem.nodes[v].alloc]
        return split_problem(self.problem, part, sent, returned)

    def end_of(self, units: Container[int]) -> Node | None:
        """The waist at the end of the segments of some units."""
        return next((self.problem.nodes[v] for v in self.chain.waists[::-1] if self.units[v] in units), None)


class _Received(NamedTuple):
    """An input of a stage's graph: the node of the whole that makes it, and its storage there."""

    maker: str
    storage: StorageId
    bytes: int
    pinned: bool


def _received(whole: Problem, stage: Problem) -> list[_Received]:
    inputs = (node.name.rpartition(".") for node in stage.nodes if node.kind is Kind.INPUT)
    return [_Received(maker, int(s), *whole.storages[int(s)]) for maker, _, s in inputs]


def _stages(groups: Sequence[range], ahead: _Graph, back: _Graph) -> tuple[tuple[ModelStage, ...], tuple[str, ...]]:
    """The stages of some units each, and what goes between them besides the hidden state and its gradient."""
    forward, backward, count = ahead.problem, back.problem, len(groups)
    stage_of = {unit: k for k, group in enumerate(groups) for unit in group}
    place, place_back = ([stage_of.get(unit, 0) for unit in graph.units] for graph in (ahead, back))
    backs = back.split([count - 1 - k for k in place_back], [back.returned] * count)[::-1]
    held = {node.name: {*(node.alloc or node.use)} for node in forward.nodes}
    gradients = {node.name for node in backward.nodes if node.kind is Kind.INPUT} - held.keys() | back.following.keys()
    into_back = [_received(backward, part) for part in backs]
    saved = [[one for one in ins if not one.pinned and one.maker not in gradients] for ins in into_back]
    claimed = [{s for one in ones for s in held.get(one.maker, ())} for ones in saved]
    others = ahead.returned.difference(*claimed)
    left = [{s for s in others if place[forward.maker[s]] == k} | own for k, own in enumerate(claimed)]
    fronts = ahead.split(place, left)
    into_front = [_received(forward, part) for part in fronts]
    sent = [[one for one in ins if one.maker in ahead.following] for ins in [*into_front[1:], []]]
    sent_back = [sum(one.bytes for one in ins if one.maker in back.following) for ins in into_back]
    stages, extra = list[ModelStage](), dict[str, None]()
    inputs = {node.name for node in forward.nodes if node.kind is Kind.INPUT}
    for k, group in enumerate(groups):
        hidden, gradient = ahead.end_of(range(group.start)), back.end_of(range(group.stop, groups[-1].stop))
        at_hand = {one.storage for one in into_front[k]}.union(s for s, v in enumerate(forward.maker) if place[v] == k)
        odd = [one for one in into_front[k] if one.maker not in inputs and one.storage not in _touched(hidden)]
        odd += [one for one in into_back[k] if one.maker in back.following and one.storage not in _touched(gradient)]
        odd += [one for one in saved[k] if not held.get(one.maker, set()) <= at_hand]
        extra |= dict.fromkeys(one.maker for one in odd)
        pinned = [Counter[str](), Counter[str]()]
        for found, ins in zip(pinned, (into_front[k], into_back[k]), strict=True):
            for one in ins:
                found[one.maker] += one.bytes * one.pinned
        end = back.end_of(range(max(group.start, 1), group.stop))
        stages.append(
            ModelStage(
                _name(group, groups[-1].stop - 2),
                fronts[k],
                backs[k],
                "" if end is None else end.name,
                sum(one.bytes for one in sent[k]),
                sum(one.bytes for one in sent[k] if one.storage not in claimed[k]),
                sent_back[k - 1] if k else 0,
                sum(one.bytes for one in saved[k]),
                (pinned[0] | pinned[1]).total(),
            )
        )
    return tuple(stages), tuple(extra)


def _bytes_of(problem: Problem, v: NodeId) -> int:
    return sum(problem.storages[s].bytes for s in problem.nodes[v].alloc or problem.nodes[v].use)


def _touched(node: Node | None) -> tuple[StorageId, ...]:
    return () if node is None else (*node.alloc, *node.use)


def _name(group: range, layers: int) -> str:
    own = [unit for unit in group if 1 <= unit <= layers]
    numbers = f"layer {own[0]}" if len(own) == 1 else f"layers {own[0]} to {own[-1]}" if own else ""
    return ", ".join(filter(None, ["embedding" * (0 in group), numbers, "head" * (layers + 1 in group)]))
