"""What torch's partitioner makes of a step: what it saves, what it recomputes, under a budget of activation memory."""

from collections.abc import Sequence

from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from overlap_sched.joint.graphs import copy_of

BUDGETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of ``torch._functorch.config.activation_memory_budget``. 1.0 (its default) recomputes where it thinks that faster."""


def partitioned(joint: fx.GraphModule, budget: float) -> fx.GraphModule:
    """The joint graph again, forward and backward as torch's partitioner would run them; ``joint`` stays as it is.

    Its own estimate of time (operations) and its own solver (dynamic program); recomputation stands where the
    partitioner puts it. A recomputed step has the name that it has in forward, and a number.
    """
    weights = list(range(len(joint.graph.find_nodes(op="placeholder")) - 1))
    with config.patch(activation_memory_budget=budget):
        forward, backward = min_cut_rematerialization_partition(
            copy_of(joint), None, num_fwd_outputs=1, static_lifetime_input_indices=weights
        )
    return joined(forward, backward)


def joined(forward: fx.GraphModule, backward: fx.GraphModule) -> fx.GraphModule:
    """One graph of both: ``primals_*`` and ``tangents_*`` in; the loss, then what backward returns, out."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]
    for node in (*forward.graph.find_nodes(op="placeholder"), *tangents):
        copies[node] = graph.node_copy(node)
    _append(graph, forward.graph, copies)
    loss, *saved = _returned(forward)
    taken = [node for node in backward.graph.find_nodes(op="placeholder") if node not in tangents]
    copies.update({there: copies[here] for there, here in zip(taken, saved, strict=True)})
    _append(graph, backward.graph, copies)
    graph.output((copies[loss], *(value and copies[value] for value in _returned(backward))))
    graph.lint()
    return fx.GraphModule(forward, graph)


def _append(graph: fx.Graph, steps: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
    for node in steps.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)


def _returned(graph_module: fx.GraphModule) -> Sequence[fx.Node]:
    values = graph_module.graph.output_node().args[0]
    assert isinstance(values, Sequence)
    return values
