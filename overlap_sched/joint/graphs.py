"""Joint graphs: a copy to try something on, and forward and backward put together again as one graph."""

from collections.abc import Iterable, Sequence

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from overlap_sched.fx.graphs import copied_node, own_meta
from overlap_sched.fx.lifting import STAYS
from overlap_sched.fx.reading import read_graph

RECOMPUTE = "recompute"
"""Where torch's partitioner looks for a :class:`torch.utils.checkpoint.CheckpointPolicy` in a node's metadata."""


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """With a graph of its own, and the same tensors in its metadata; names stay."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copies[node] = copied_node(graph, node, copies)
    made = fx.GraphModule(gm, graph)
    made.meta = own_meta(gm.meta)
    return made


def mark(gm: fx.GraphModule, again: Iterable[str], kept: Iterable[str] = ()) -> None:
    """Tell torch's partitioner what runs again in backward, and what does not although it was to."""
    nodes = {node.name: node for node in gm.graph.nodes}
    for name in kept:
        nodes[name].meta.pop(RECOMPUTE, None)
    for name in again:
        nodes[name].meta[RECOMPUTE] = CheckpointPolicy.MUST_RECOMPUTE


def runs_again(node: fx.Node) -> bool:
    """Tell whether torch's partitioner is told to run a node again."""
    return node.meta.get(RECOMPUTE) in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def draws(node: fx.Node) -> bool:
    """Tell whether torch says that a node may draw random numbers: attention too, whatever its dropout.

    Where such a node is to run again, torch's partitioner saves the generator's state
    (``torch/_functorch/partitioners.py: functionalize_rng_ops``).
    """
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def has_graphs_inside(gm: fx.GraphModule) -> bool:
    """Tell whether it calls graphs of its own (higher-order operators): each of them is partitioned by itself."""
    return any(isinstance(module, fx.GraphModule) for module in gm.children())


def inputs_of(graph: fx.Graph) -> list[fx.Node]:
    """The placeholders."""
    return list(graph.find_nodes(op="placeholder"))


def note_what_stays(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Mark what backward takes that is an input of forward, or a view of one: its caller holds that on.

    A sharded weight is saved as a view of itself, under the view's name.
    """
    reading = read_graph(forward.graph)
    of_node = dict(zip(reading.nodes, reading.outs, strict=True))
    held = {s for node, stored in of_node.items() if node.op == "placeholder" for s in stored}
    names = {node.name for node, stored in of_node.items() if not held.isdisjoint(stored)}
    for node in inputs_of(backward.graph):
        if node.name in names:
            node.meta[STAYS] = True


def returned(graph: fx.Graph) -> Sequence[fx.Node | None]:
    """Return what the graph gives back."""
    values = graph.output_node().args[0]
    return values if isinstance(values, Sequence) else (values,)


def joined(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> tuple[fx.GraphModule, dict[str, str]]:
    """One graph of both halves, and what the nodes of backward are called there.

    Inputs of both come first, then forward, then backward. What runs again has its node's name and a number.

    Args:
        forward: Gives ``outputs`` values to the caller, then those that are saved.
        backward: Takes saved values by the names that they have in forward, and tangents.
        outputs: See above.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs_of(forward.graph):
        copies[node] = copied_node(graph, node, copies)
    saved = {node.name: node for node in forward.graph.nodes}
    late = [node for node in inputs_of(backward.graph) if node.name not in saved]
    for node in late:
        copies[node] = copied_node(graph, node, copies)
    _append(graph, forward.graph, copies)
    for node in inputs_of(backward.graph):
        if node.name in saved:
            copies[node] = copies[saved[node.name]]
    _append(graph, backward.graph, copies)
    names = {n.name: copies[n].name for n in backward.graph.nodes if n.op not in ("placeholder", "output")}
    given = [*returned(forward.graph)[:outputs], *returned(backward.graph)]
    graph.output(tuple(None if node is None else copies[node] for node in given))
    modules = {name: module for half in (forward, backward) for name, module in half.named_children()}
    return fx.GraphModule(torch.nn.ModuleDict(modules), graph), names


def _append(graph: fx.Graph, steps: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
    for node in steps.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = copied_node(graph, node, copies)
