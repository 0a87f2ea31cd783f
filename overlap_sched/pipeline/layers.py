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
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from overlap_sched.errors import PipelineError
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
        gradient: The node of backward that makes the gradient of what the first of its layers receives; ``""``: none.
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
        extra: What stages need of each other besides the hidden state and its gradient: names of nodes that make it.
    """

    layers: int
    found_by: str
    stages: tuple[ModelStage, ...]
    extra: tuple[str, ...]

    @property
    def words(self) -> str:
        """``32 layers (by repeated operators): embedding, layers 1 to 16 | layers 17 to 32, head``."""
        more = f"; needed besides the hidden state and its gradient: {', '.join(self.extra)}" if self.extra else ""
        return f"{self.layers} layers (by {self.found_by}): {' | '.join(stage.name for stage in self.stages)}{more}"


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
    ahead = _follow(forward, [v for v, node in enumerate(forward.nodes) if node.kind is Kind.INPUT])
    place = ahead.settle(ahead.depth)
    segments, found_by = _layers_of_segments(ahead, place)
    count, units = max(segments) - 1, [segments[k] for k in place]
    back, back_units = _place_backward(forward, units, backward, count)
    if isinstance(layers, int):
        layers = [count // layers + (k < count % layers) for k in range(layers)]
    if layers is not None and (sum(layers) != count or min(layers) < 1):
        raise PipelineError(
            f"{len(layers)} stages of {', '.join(map(str, layers))} layers: {forward.name} has {count} layers, by "
            f"{found_by}. Give each stage one or more, and all of them to some stage."
        )
    ends = [0, *accumulate([1] * count if layers is None else layers)]
    groups = [range(a + bool(a), b + 1) for a, b in pairwise(ends)]
    if layers is None and count + 1 in units:
        groups.append(range(count + 1, count + 2))
    groups[-1] = range(groups[-1].start, count + 2)
    return CutModel(count, found_by, *_stages(groups, ahead, units, back, back_units))


@dataclass(frozen=True)
class _Chain:
    """A graph, and what follows from one of its inputs.

    Attributes:
        depth: Per node its segment; -1: it does not follow.
        waists: Per segment, the node at its end.
    """

    problem: Problem
    depth: list[int]
    waists: list[NodeId]

    @property
    def made(self) -> set[StorageId]:
        """What follows from the input."""
        both = zip(self.problem.nodes, self.depth, strict=True)
        return {s for node, k in both if k >= 0 and node.kind is not Kind.INPUT for s in node.alloc}

    def settle(self, place: Iterable[int]) -> list[int]:
        """Give nodes without a place (-1) one: where they are first needed, else that of the last that they need."""
        found, nodes = list(place), self.problem.nodes
        for v in reversed(range(len(nodes))):
            if found[v] < 0:
                users = [found[w] for w in self.problem.successors[v] if nodes[w].kind is not Kind.OUTPUT]
                found[v] = min((one for one in users if one >= 0), default=-1)
        for v, before in enumerate(self.problem.predecessors):
            if found[v] < 0:
                found[v] = max((found[u] for u in before), default=0)
        return [max(one, 0) for one in found]

    def waist_of(self, units: Sequence[int], wanted: Container[int]) -> Node | None:
        """The last waist that is in some units."""
        return next((self.problem.nodes[v] for v in self.waists[::-1] if units[v] in wanted), None)


def _follow(problem: Problem, sources: Iterable[NodeId]) -> _Chain:
    """The chain from the source from which most follows, to the node that needs most."""
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
    return _Chain(problem, depth, waists or [source])


def _layers_of_segments(chain: _Chain, place: Sequence[int]) -> tuple[list[int], str]:
    """Per segment 0 (embedding), a layer from 1 on, or the number behind the last (head); and how they were found."""
    nodes, count = chain.problem.nodes, len(chain.waists)
    found = [(k, at.string[: at.start()], int(at[1])) for node, k in zip(nodes, place, strict=True)
             if (at := _NUMBER.search(node.module))]  # fmt: skip
    numbers = Counter(module for module, _ in dict.fromkeys((module, number) for _, module, number in found))
    container = max(numbers, key=numbers.__getitem__, default="")
    if numbers[container] > 1:
        highest = dict(sorted((k, number) for k, module, number in found if module == container))
        start, layers, last = min(highest), list[int](), -1
        for k in range(start, max(highest) + 1):
            layers.append(layers[-1] + (highest.get(k, last) > last) if layers else 1)
            last = max(last, highest.get(k, last))
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
    return [*[0] * start, *layers, *[layers[-1] + 1] * (count - start - len(layers))], found_by


def _repetition(segments: Sequence[Counter[str]]) -> tuple[int, list[int]]:
    """Where the repetition starts that has most nodes, and the layers of its segments."""

    def likeness(at: int, pattern: Counter[str], period: int) -> float:
        other = sum(segments[at : at + period], Counter[str]()) if 0 <= at <= len(segments) - period else Counter()
        return (pattern & other).total() / (pattern | other).total()

    most, found = 0.0, (0, list[int]())
    for period, first in product(range(1, len(segments) // 2 + 1), range(len(segments))):
        block = segments[first : first + period]
        if segments[first + period : first + 2 * period] != block or segments[max(first - period, 0) : first] == block:
            continue
        pattern, start, end = sum(block, Counter[str]()), first, first + period
        while likeness(start - period, pattern, period) >= ALIKE:
            start -= period
        while likeness(end, pattern, period) >= ALIKE:
            end += period
        likes = [likeness(at, pattern, period) ** 2 for at in range(start, end, period)]  # two halves are not a whole
        if pattern.total() * sum(likes) > 1.01 * most:  # a longer period has to have more
            most, found = pattern.total() * sum(likes), (start, [1 + k // period for k in range(end - start)])
    return found


def _place_backward(forward: Problem, units: Sequence[int], backward: Problem, count: int) -> tuple[_Chain, list[int]]:
    """The chain of backward, and per node its unit."""
    of_name = {node.name: (unit, node.op) for node, unit in zip(forward.nodes, units, strict=True)}
    given = [v for v, node in enumerate(backward.nodes) if node.kind is Kind.INPUT and node.name not in of_name]
    if not given:
        raise PipelineError(f"{backward.name}: no input is a gradient. Give the backward graph of {forward.name}.")
    chain, head, known = _follow(backward, given), count + 1, dict[NodeId, int]()
    votes = [Counter[int]() for _ in chain.waists]
    for v, (node, before) in enumerate(zip(backward.nodes, backward.predecessors, strict=True)):
        uses = [known[u] for u in before if u in known]
        if chain.depth[v] >= 0:
            votes[chain.depth[v]].update(uses)
        elif node.name in of_name or uses:
            known[v] = of_name[node.name][0] if node.name in of_name else max(uses)
    sizes = [_bytes(backward, _touched(backward.nodes[v])) for v in chain.waists]
    segments, cut = [head] * len(votes), 1  # segments from the cut on may be of the next unit: none has said otherwise
    for k, vote in enumerate(votes):
        unit = max(vote, key=lambda one: (vote[one], one), default=head)
        if unit < segments[k]:
            cut = min(range(cut, k + 1), key=lambda at: (sizes[at - 1], -at))
            segments[cut:] = [unit] * (len(votes) - cut)
        cut = k + 1 if vote else cut
    if missing := sorted({*range(1, head)} - {*segments}):
        raise PipelineError(
            f"{backward.name}: nothing in it belongs to layer {missing[0]} of {forward.name}, which has {count}. Give "
            "the two graphs of one step."
        )
    place = list[int]()
    for node, depth in zip(backward.nodes, chain.depth, strict=True):
        unit, op = of_name.get(node.name, (head + 1, ""))
        place.append(head - (segments[depth] if depth >= 0 else unit if op == node.op else head + 1))
    return chain, [head - one for one in chain.settle(place)]


def _touched(node: Node | None) -> set[StorageId]:
    return set() if node is None else {*(node.alloc or node.use)}


def _bytes(problem: Problem, storages: Iterable[StorageId]) -> int:
    return sum(problem.storages[s].bytes for s in storages)


def _stages(
    groups: Sequence[range], ahead: _Chain, units: Sequence[int], back: _Chain, back_units: Sequence[int]
) -> tuple[tuple[ModelStage, ...], tuple[str, ...]]:
    """The stages of some units each, and what they need of each other besides the hidden state and its gradient."""
    forward, backward, count, layers = ahead.problem, back.problem, len(groups), groups[-1].stop - 2
    stage_of = {unit: k for k, group in enumerate(groups) for unit in group}
    place, back_place = [stage_of[unit] for unit in units], [count - 1 - stage_of[unit] for unit in back_units]
    maker, back_maker = ([problem.nodes[v].name for v in problem.maker] for problem in (forward, backward))
    returned, back_returned = (
        {s for node in problem.nodes if node.kind is Kind.OUTPUT for s in node.use} for problem in (forward, backward)
    )
    made, back_made, held = ahead.made, back.made, {node.name: _touched(node) for node in forward.nodes}
    known = held.keys() | {node.name for node in backward.nodes if node.kind is Kind.INPUT}
    backs = split_problem(backward, back_place, back_made, [back_returned] * count)[::-1]
    saved = [
        {s for s in taken - back_made if back_maker[s] in held and not backward.storages[s].pinned}
        for _, taken in backs
    ]
    left = [{s for one in ones for s in held[back_maker[one]]} for ones in saved]
    others = returned.difference(*left)
    homes = [{s for s, v in enumerate(forward.maker) if place[v] == k} for k in range(count)]
    fronts = split_problem(forward, place, made, [a | (b & others) for a, b in zip(left, homes, strict=True)])
    stages, extra = list[ModelStage](), list[str]()
    for k, group in enumerate(groups):
        (front, taken), (rear, back_taken) = fronts[k], backs[k]
        sent = fronts[k + 1][1] & made if k + 1 < count else set()
        hidden = _touched(ahead.waist_of(units, range(group.start)))
        gradient = _touched(back.waist_of(back_units, range(group.stop, layers + 2)))
        extra += [maker[s] for s in sorted(taken - hidden) if forward.nodes[forward.maker[s]].kind is not Kind.INPUT]
        extra += [back_maker[s] for s in sorted(back_taken - gradient) if s in back_made or back_maker[s] not in known]
        extra += [back_maker[s] for s in sorted(saved[k]) if not held[back_maker[s]] <= taken | homes[k]]
        parameters = {maker[s]: forward.storages[s] for s in taken} | {
            back_maker[s]: backward.storages[s] for s in back_taken
        }
        end = back.waist_of(back_units, range(max(group.start, 1), group.stop))
        stages.append(
            ModelStage(
                _name(group, layers),
                front,
                rear,
                "" if end is None else end.name,
                _bytes(forward, sent),
                _bytes(forward, sent - left[k]),
                _bytes(backward, backs[k - 1][1] & back_made) if k else 0,
                _bytes(backward, saved[k]),
                sum(storage.bytes for storage in parameters.values() if storage.pinned),
            )
        )
    return tuple(stages), tuple(dict.fromkeys(extra))


def _name(group: range, layers: int) -> str:
    first, last = max(group.start, 1), min(group.stop - 1, layers)
    numbers = f"layer {first}" if first == last else f"layers {first} to {last}" if first < last else ""
    return ", ".join(filter(None, ["embedding" * (0 in group), numbers, "head" * (layers + 1 in group)]))
