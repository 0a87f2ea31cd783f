"""Split a joint graph into forward and backward, recomputing in backward all that is not saved.

Done by hand rather than by torch's min-cut partitioner, so that what is saved is exactly what selective
recomputation says, in every version of torch. Recomputation is placed where autograd would run it: as late as possible.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from torch import fx

from overlap_sched.fx.graphs import copied_node, own_meta


def split_joint(
    joint: fx.GraphModule, forward_outputs: int, must_save: Set[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split ``joint``; inputs may always be saved, other values only those in ``must_save``.

    Args:
        joint: Graph from AOTAutograd: ``primals_*`` and ``tangents_*`` in; outputs, then gradients out.
        forward_outputs: How many of its outputs belong to the forward pass.
        must_save: Nodes of the forward pass.

    Returns:
        Forward, which returns its outputs and then what is saved, and backward, which takes that and the tangents.
    """
    outputs = joint.graph.output_node().args[0]
    assert isinstance(outputs, Sequence)
    losses, gradients = outputs[:forward_outputs], outputs[forward_outputs:]
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [node for node in placeholders if node.name.startswith("tangents")]
    after_tangents = set(tangents)
    for node in joint.graph.nodes:
        if any(parent in after_tangents for parent in node.all_input_nodes):
            after_tangents.add(node)

    def stop(node: fx.Node) -> bool:
        return node.op == "placeholder" or (node not in after_tangents and node in must_save)

    rank = {node: i for i, node in enumerate(joint.graph.nodes)}
    reached = _needed(_nodes(gradients), stop)
    saved = sorted((node for node in reached if stop(node) and node not in after_tangents), key=rank.__getitem__)
    body = sorted((node for node in reached if not stop(node)), key=rank.__getitem__)
    backward = _make_graph(joint, [*saved, *tangents], _lazy_order(body, after_tangents, rank), gradients)
    needed = _needed([*_nodes(losses), *saved], lambda node: node.op == "placeholder")
    steps = sorted((node for node in needed if node.op != "placeholder"), key=rank.__getitem__)
    primals = [node for node in placeholders if node not in after_tangents]
    forward = _make_graph(joint, primals, steps, [*losses, *saved])
    return forward, backward


def _nodes(values: Iterable[object]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]


def _needed(targets: list[fx.Node], stop: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """What ``targets`` are made from, themselves included, walking no further than nodes at which to ``stop``."""
    seen, stack = set(targets), list(targets)
    while stack:
        node = stack.pop()
        if stop(node):
            continue
        for parent in node.all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return seen


def _lazy_order(body: list[fx.Node], after_tangents: set[fx.Node], rank: dict[fx.Node, int]) -> list[fx.Node]:
    """Steps of backward in their own order; what must be recomputed comes right before its first user."""
    waiting, order = set(body), []

    def placed(node: fx.Node) -> bool:
        return node not in waiting

    for node in body:
        if node not in after_tangents:
            continue
        missing = _needed([node], placed) & waiting
        order += sorted(missing, key=rank.__getitem__)
        waiting -= missing
    return [*order, *sorted(waiting, key=rank.__getitem__)]


def _make_graph(
    joint: fx.GraphModule, inputs: list[fx.Node], steps: list[fx.Node], outputs: Sequence[Any]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = own_meta(node.meta)
    for node in steps:
        copies[node] = copied_node(graph, node, copies)
    graph.output(tuple(copies[value] if isinstance(value, fx.Node) else value for value in outputs))
    graph.lint()
    return fx.GraphModule(joint, graph)
