"""From a model, a mesh and a number of nodes to a problem."""

import math
from collections.abc import Callable

from llama_repro.generate.models import TRACED_LAYERS, Mesh, Model
from llama_repro.generate.repeat import Layers, find_layers, repeat
from llama_repro.generate.step import Step, saved_in_forward
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Problem

FEWEST = 2_000
"""Nodes; what is traced has nearly as many."""

Traced = tuple[Problem, Problem]
"""Forward and backward graph of one micro-batch, of few layers."""


def generate(
    model: Model,
    traced: Traced,
    mesh: Mesh,
    nodes: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Problem:
    """A training step of the model with at least so many nodes, and less than a layer of each micro-batch more.

    As few micro-batches as it takes (with stages: at least one for each); then as few layers as it takes. The same
    arguments give the same problem.

    Args:
        model: Which one.
        traced: What tracing :meth:`Model.traced` on that mesh gave.
        mesh: Ranks.
        nodes: How many at least; ``None``: all layers of the model (on one stage), fewest micro-batches.
        progress: Called with what is being done.

    Raises:
        OptionsError: Too few nodes.
    """
    if nodes is not None and nodes < FEWEST:
        raise OptionsError(f"nodes is {nodes}; a generated graph has {FEWEST} or more.")
    forward, backward = map(find_layers, traced)
    layers, micro_batches = max(math.ceil(model.layers / mesh.pp), TRACED_LAYERS), mesh.pp
    if nodes is not None:
        layers, micro_batches = _fewest(forward, backward, layers, mesh.pp, nodes)
    progress(f"{model.sizes.name}, {mesh}: {micro_batches} micro-batches of {layers} layers")
    name = f"llama_{model.sizes.name}_{mesh}_{layers}x{micro_batches}".replace(",", "_").replace("=", "")
    return _step(forward, backward, layers, micro_batches, mesh.pp).problem(name)


def _step(forward: Layers, backward: Layers, layers: int, micro_batches: int, stages: int) -> Step:
    ahead, back = repeat(forward, layers - TRACED_LAYERS), repeat(backward, layers - TRACED_LAYERS)
    return Step(ahead.problem, back.problem, saved_in_forward(ahead, back), micro_batches, stages)


def _fewest(forward: Layers, backward: Layers, most: int, stages: int, nodes: int) -> tuple[int, int]:
    """(layers, micro-batches): the number of nodes is linear in each of the two, so four small steps tell it."""

    def count(layers: int, micro_batches: int) -> int:
        return len(_step(forward, backward, layers, micro_batches, stages).problem("").nodes)

    few, some = TRACED_LAYERS, TRACED_LAYERS + 1
    one, two = stages, stages + 1  # micro-batches
    layer_one, layer_two = count(some, one) - count(few, one), count(some, two) - count(few, two)
    first, second = count(few, one), count(few, two)

    def total(layers: int, micro_batches: int) -> int:
        of_layer = layer_one + (layer_two - layer_one) * (micro_batches - one)
        return first + (second - first) * (micro_batches - one) + of_layer * (layers - few)

    micro_batches = one
    while total(most, micro_batches) < nodes:
        micro_batches += 1
    layers = few
    while total(layers, micro_batches) < nodes:
        layers += 1
    return layers, micro_batches
