"""From the forward and the backward graph of a whole model to its layers, and to stages of whole layers.

What follows from the input (of backward: from the gradient that comes in) is a chain of *waists*, values through which
all that comes later goes; between two of them is a segment. A layer is some neighbouring segments, so that the hidden
state is all that goes from one layer to the next::

    forward    tokens -> embedding -o- attention -o- MLP -o- attention -o- MLP -o- norm -> mm -> logits
    segments               0             1            2        1            2         3   4 ...
    layers             embedding       |   layer 1        |   layer 2           |   head

Which segments make a layer is given by names of modules (``layers.3.attention``) where the graph has any. Else it is
found: segments are alike that have the same operators, and the layers are the longest repetition of some of them one
behind the other, with neighbours that are nearly alike (a dense layer in front of layers of experts).

A node that does not follow from the input (a gathered parameter) is where it is first needed. Values of forward that
backward uses, saved or computed again, have the same names there: they say which layer a segment of backward is of.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from overlap_sched.errors import PipelineError
from overlap_sched.problem import Kind, Node, NodeId, Problem, StorageId
from overlap_sched.problem.parts import split_problem
from overlap_sched.problem.precedence import find_reachable

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
ALIKE = 0.4
"""Neighbours of the repetition are layers, too, with so much of all operators of both in common."""


@dataclass(frozen=True)
class ModelStage:
    """Neighbouring layers of a model: their graphs, and what goes in and out, in bytes.

    Attributes:
        name: ``"embedding, layers 1 to 8"``.
        forward, backward: Inputs are what comes in, what was saved, and parameters (pinned).
        gradient: The node of backward that makes the gradient of what the first of its layers receives; ``""``: none.
        output_bytes: What forward sends to the next stage. gradient_bytes: what backward sends to the previous one.
        saved_bytes: From forward to backward.
    """

    name: str
    forward: Problem
    backward: Problem
    gradient: str
    output_bytes: int
    gradient_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class CutModel:
    """A model in stages.

    Attributes:
        layers: How many it has, without embedding and head.
        found_by: ``"names of modules"`` or ``"repeated operators"``.
        stages: In the order of forward.
        extra: What stages need of each other besides the hidden state and its gradient, by the nodes that make it: it
            is taken as there, and not sent (tied weights, masks that all layers share).
    """

    layers: int
    found_by: str
    stages: tuple[ModelStage, ...]
    extra: tuple[str, ...]


def cut_model(forward: Problem, backward: Problem, layers: Sequence[int] | int | None = None) -> CutModel:
    """Cut both graphs of a model into stages; each node is in one of them.

    The first stage has the embedding, too, and the last the head.

    Args:
        forward: Of a training step.
        backward: Of the same step: what forward saves has the same names, as in two dumps.
        layers: How many layers each stage has; a number: of stages, the first of them with a layer more where layers do
            not divide. ``None``: a stage for each layer, and one for the head.

    Raises:
        PipelineError: No layers are found, the graphs are not of one model, or there are fewer layers than stages.
    """
    ahead = _follow(forward)
    segments, found_by = _layers_of_segments(ahead)
    units = [segments[k] for k in _settle(forward, ahead.depth)]
    count = max(segments) - 1
    back, back_units = _follow_back(forward, units, backward, count)
    if layers is None or isinstance(layers, int):
        stages = layers or count
        layers = [count // stages + (k < count % stages) for k in range(stages)]
    if sum(layers) != count or min(layers) < 1:
        raise PipelineError(
            f"{len(layers)} stages of {', '.join(map(str, layers))} layers: {forward.name} has {count} layers, by "
            f"{found_by}. Give each stage one or more, and all of them to some stage."
        )
    home = [0, *(k for k, size in enumerate(layers) for _ in range(size)), len(layers) - 1]
    found, extra = _stages(layers, ahead, [home[unit] for unit in units], back, [home[unit] for unit in back_units])
    return CutModel(count, found_by, found, extra)


@dataclass(frozen=True)
class _Chain:
    """A graph, and what follows from one of its nodes.

    Attributes:
        depth: Per node its segment; -1: it does not follow.
        waists: Per segment, the node at its end.
    """

    problem: Problem
    depth: list[int]
    waists: list[NodeId]

    def bytes_of(self, storages: Iterable[StorageId]) -> int:
        """Add up those of storages."""
        return sum(self.problem.storages[s].bytes for s in storages)

    def names_of(self, storages: Iterable[StorageId]) -> list[str]:
        """List the nodes that make storages, inputs aside."""
        makers = (self.problem.nodes[self.problem.maker[s]] for s in sorted(storages))
        return [node.name for node in makers if node.kind is not Kind.INPUT]

    def ends(self, place: Sequence[int]) -> dict[int, set[StorageId]]:
        """Give by place what the last waist there holds."""
        return {place[v]: _storages(self.problem.nodes[v]) for v in self.waists}


def _storages(node: Node) -> set[StorageId]:
    return {*(node.alloc or node.use)}


def _follow(problem: Problem, sources: Collection[NodeId] = ()) -> _Chain:
    """The chain along the longest path from a source, from the first node on that needs two others.

    All that needs a source follows; where none is given, any node is one, and what needs that first node follows.
    """
    nodes = problem.nodes
    touched = [{*node.alloc, *node.use} for node in nodes]
    flow = [
        [u for u in before if not touched[u].isdisjoint(node.use)] if node.kind is not Kind.OUTPUT else []
        for node, before in zip(nodes, problem.predecessors, strict=True)
    ]
    length, start = [int(not sources or v in sources) for v in range(len(nodes))], [-1] * len(nodes)
    for v, before in enumerate(flow):
        u = max(before, key=length.__getitem__, default=v)
        if length[u] and u != v:
            length[v] = length[u] + 1
            start[v] = v if start[u] < 0 and len(before) > 1 else start[u]
    target = max(range(len(nodes)), key=length.__getitem__)
    source = target if start[target] < 0 else start[target]
    follows, needed = {source}, {target} | find_reachable([target], flow.__getitem__)
    for v, before in enumerate(flow):
        if not follows.isdisjoint(before):
            follows.add(v)
    path = sorted(follows & needed)
    last_user = {u: v for v in path for u in flow[v]}
    furthest, waists = source, list[NodeId]()
    for v in path:
        if furthest == v and nodes[v].kind is not Kind.COLLECTIVE:
            waists.append(v)
        furthest = max(furthest, last_user.get(v, v))
    ends, depth, roots = set(waists[:-1]), list[int](), sources or {source}
    for v, earlier in enumerate(problem.predecessors):
        depth.append(max((depth[u] + (u in ends) for u in earlier if depth[u] >= 0), default=-1 + (v in roots)))
    return _Chain(problem, depth, waists)


def _settle(problem: Problem, place: Iterable[int]) -> list[int]:
    """Give nodes without a place (-1) one: where they are first needed, else that of the last that they need."""
    found, nodes = list(place), problem.nodes
    for v in reversed(range(len(nodes))):
        if found[v] < 0:
            users = [found[w] for w in problem.successors[v] if nodes[w].kind is not Kind.OUTPUT]
            found[v] = min((one for one in users if one >= 0), default=-1)
    for v, before in enumerate(problem.predecessors):
        if found[v] < 0:
            found[v] = max([0, *(found[u] for u in before)])
    return found


def _layers_of_segments(chain: _Chain) -> tuple[list[int], str]:
    """Per segment, and one more, 0 (embedding), a layer from 1 on, or behind the last the head; and how found."""
    nodes, count, found = chain.problem.nodes, len(chain.waists), defaultdict[str, set[tuple[int, int]]](set)
    for node, k in zip(nodes, _settle(chain.problem, chain.depth), strict=True):
        if at := _NUMBER.search(node.module):
            found[node.module[: at.start()]].add((k, int(at[1])))
    container = max(sorted(found), key=lambda module: len({number for _, number in found[module]}), default="")
    highest = dict(sorted(found[container]))
    if len({*highest.values()}) > 1:
        start = min(highest)
        reached = list(accumulate((highest.get(k, 0) for k in range(start, max(highest) + 1)), max))
        layers = [1 + sorted({*reached}).index(number) for number in reached]
        found_by = f"names of modules ({container}.0, ...)"
    else:
        operators = [Counter[str]() for _ in chain.waists]
        for node, k in zip(nodes, chain.depth, strict=True):
            if k >= 0 and node.use and node.kind is not Kind.OUTPUT:
                operators[k][node.op] += 1
        start, layers = _repetition(operators)
        found_by = "repeated operators"
    if not layers:
        raise PipelineError(
            f"{chain.problem.name}: no layers are found: no modules have numbers, and no sequence of operators is "
            "repeated. Give the forward graph of a whole model, or a [[stage]] for each stage."
        )
    return [*[0] * start, *layers, *[layers[-1] + 1] * (count + 1 - start - len(layers))], found_by


def _repetition(segments: Sequence[Counter[str]]) -> tuple[int, list[int]]:
    """Where the repetition starts that has most nodes, and the layers of its segments."""
    most, found, count = 0.0, (0, list[int]()), len(segments)
    for period in range(1, count // 2 + 1):
        blocks = [sum(segments[k : k + period], Counter[str]()) for k in range(count - period + 1)]
        likes = [(a & b).total() / (a | b).total() for a, b in zip(blocks, blocks[period:], strict=False)]
        for start in range(count):
            end = start
            while end < len(likes) and likes[end] >= ALIKE:
                end += period
            nodes = sum(blocks[k].total() * likes[k] ** 2 for k in range(start, end, period))  # two halves are no whole
            if nodes > 1.01 * most:  # a longer period has to have more
                most, found = nodes, (start, [1 + k // period for k in range(end + period - start)])
    return found


def _follow_back(forward: Problem, units: Sequence[int], backward: Problem, count: int) -> tuple[_Chain, list[int]]:
    """The chain of backward, and per node its unit: segments are of that of which they use most values of forward."""
    of_name = dict(zip((node.name for node in forward.nodes), units, strict=True))
    nodes, head, returned = backward.nodes, count + 1, {*forward.nodes[-1].deps}
    given = [v for v, node in enumerate(nodes) if node.kind is Kind.INPUT and node.name not in of_name]
    inner = {node.name for v, node in enumerate(forward.nodes) if node.kind is not Kind.INPUT and v not in returned}
    if lost := next((node.name for node in nodes if node.kind is Kind.INPUT and node.name in inner), ""):
        lacks = f"takes {lost}, which {forward.name} does not return"
        raise PipelineError(f"{backward.name}: {lacks}. Give the two graphs of one step.")
    chain = _follow(backward, given)
    votes = [Counter[int]() for _ in chain.waists]
    for node, depth, before in zip(nodes, chain.depth, backward.predecessors, strict=True):
        if depth >= 0 and node.kind is not Kind.OUTPUT:
            votes[depth].update(of_name[nodes[u].name] for u in before if nodes[u].name in of_name)
    segments = list(accumulate((max(vote, key=lambda one: (vote[one], one), default=head) for vote in votes), min))
    if missing := sorted({*range(1, head)} - {*segments}):
        lacks = f"nothing in it belongs to layer {missing[0]} of {forward.name}, which has {count}"
        raise PipelineError(f"{backward.name}: {lacks}. Give the two graphs of one step.")
    places = [
        head - (segments[depth] if depth >= 0 else of_name.get(node.name, head + 1))
        for node, depth in zip(nodes, chain.depth, strict=True)
    ]
    waists = chain.waists[: len(segments) - segments.count(0)]  # the embedding sends nothing back
    return replace(chain, waists=waists), [head - place for place in _settle(backward, places)]


def _stages(
    layers: Sequence[int], ahead: _Chain, place: Sequence[int], back: _Chain, back_place: Sequence[int]
) -> tuple[tuple[ModelStage, ...], tuple[str, ...]]:
    """The stages, and what they need of each other besides the hidden state and its gradient."""
    forward, backward, count = ahead.problem, back.problem, len(layers)
    hidden, gradients = ahead.ends(place), back.ends(back_place)
    backs = split_problem(backward, back_place, [{*backward.nodes[-1].use, *gradients[k]} for k in range(count)])
    held = {node.name: _storages(node) for node in forward.nodes}
    maker = [backward.nodes[v].name for v in backward.maker]
    saved = [{s for s in taken if maker[s] in held and not backward.storages[s].pinned} for _, taken in backs]
    claimed = [{one for s in own for one in held[maker[s]]} for own in saved]
    homes = [{s for s, v in enumerate(forward.maker) if place[v] == k} for k in range(count)]
    others = {*forward.nodes[-1].use}.difference(*claimed)
    fronts = split_problem(forward, place, [claimed[k] | (homes[k] & others) | hidden[k] for k in range(count)])
    stages, extra, end = list[ModelStage](), list[str](), 0
    for k, (size, (front, taken), (rear, back_taken)) in enumerate(zip(layers, fronts, backs, strict=True)):
        extra += ahead.names_of(taken - hidden.get(k - 1, set()))
        extra += [name for name in back.names_of(back_taken - gradients.get(k + 1, set())) if name not in held]
        extra += [maker[s] for s in sorted(saved[k]) if not held[maker[s]] <= taken | homes[k]]
        numbers = f"layer {end + 1}" if size == 1 else f"layers {end + 1} to {end + size}"
        stages.append(
            ModelStage(
                name="embedding, " * (k == 0) + numbers + ", head" * (k == count - 1),
                forward=front,
                backward=rear,
                gradient=next(backward.nodes[v].name for v in back.waists[::-1] if back_place[v] == k),
                output_bytes=ahead.bytes_of(hidden[k]) * (k < count - 1),
                gradient_bytes=back.bytes_of(gradients[k]) * (k > 0),
                saved_bytes=back.bytes_of(saved[k]),
            )
        )
        end += size
    return tuple(stages), tuple(dict.fromkeys(extra))
