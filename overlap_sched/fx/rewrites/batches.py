"""The step in parts along its batch, forward and backward of one part before the next: for memory.

What one level of a network holds in forward and backward is then held for one part at a time. Weights go whole to
every part, and their gradients are added up, so that these are rounded otherwise than those of the whole batch; they
are used behind the last part.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import fx

from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.dimensions.region import Region, region_from
from overlap_sched.fx.dimensions.rules import is_float, shape
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.facts import GraphFacts
from overlap_sched.transform.dimension_graph import EndsError, range_cut
from overlap_sched.transform.rewrites import Fission

PARTS = (2, 4, 8, 16)
INPUTS = 8
"""Inputs that are tried: those whose first dimension is as large as that of most values."""
LARGEST = 100_000
"""Nodes that a graph in parts may have."""
LEAST = 0.2
"""Of the compute time: what runs in parts of less than this is no candidate."""


def batch_fissions(lifted: Lifted, parts: Sequence[int] = PARTS) -> list[Fission]:
    """Fissions of as much of a step as runs in parts along the batch; by ascending number of parts.

    Args:
        lifted: Of a whole step.
        parts: Into how many; where the batch does not divide, or the graph would be too large, it is left out.
    """
    graph = lifted.nodes[0].graph
    us = {node.name: node.time_us for node in lifted.problem.nodes}
    facts = GraphFacts(graph)
    never = {one for one in graph.nodes if facts.written(one) or one in facts.after or facts.by_address(one)}
    best, most_us = None, LEAST * sum(us.values())
    for seed in (*_inputs(graph), *_second(graph)):
        region = _grown(graph, *seed, 2, never)
        held_us = sum(us.get(inside.name, 0.0) for inside in region.gives) if region is not None else 0.0
        if held_us > most_us:
            best, most_us = seed, held_us
    regions = (_grown(graph, *best, n, never) if best else None for n in parts)
    small = (one for one in regions if one and len(one.gives) * (one.parts - 1) + len(lifted.problem.nodes) <= LARGEST)
    return [found for one in small if (found := fission_of(one)) is not None]


def _inputs(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """Inputs whose first dimension many values share; of one shape only the first."""
    values = {node: value for node in graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)}
    first = {node: value.shape[0] for node, value in values.items() if value.ndim and type(value.shape[0]) is int}
    sizes = Counter(first.values())
    shapes = {tuple(values[node].shape): node for node in reversed(first) if node.op == "placeholder"}
    return [(node, 0) for node in sorted(shapes.values(), key=lambda node: -sizes[first[node]])[:INPUTS]]


def _second(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """Inputs that may have their batch behind another dimension: tokens and labels, listed (sequence, batch)."""
    found: dict[tuple[int, ...], fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.ndim > 1 and not is_float(node):
            found.setdefault(tuple(value.shape), node)
    return [(node, 1) for node in list(found.values())[:INPUTS]]


def _grown(graph: fx.Graph, seed: fx.Node, dim: int, parts: int, never: Collection[fx.Node]) -> Region | None:
    try:
        seeds = {seed: range_cut(shape(seed), dim, parts)}
    except EndsError:
        return None
    region = region_from(graph, seeds, parts, never=never, sums=True)
    return region if region.gives else None
