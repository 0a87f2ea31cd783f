"""Put an order back into an FX graph."""

from collections.abc import Sequence

from torch import fx, nn

from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.problem import Problem


def graph_of(gm: object) -> fx.Graph:
    """Return the graph of a graph module; a graph is its own.

    Raises:
        OptionsError: It is neither.
    """
    if isinstance(gm, fx.GraphModule | fx.Graph):
        return gm.graph if isinstance(gm, fx.GraphModule) else gm
    if isinstance(gm, nn.Module) or callable(gm):
        what = "Call enable() before torch.compile(model), which orders its graphs."
    else:
        what = "Of a Problem: schedule(problem)." if isinstance(gm, Problem) else "See lift() for what it must hold."
    raise OptionsError(f"gm is a {type(gm).__name__}; it is a graph of a compiler, a torch.fx.GraphModule. {what}")


def reorder(gm: fx.GraphModule | fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Make ``nodes`` the order of the graph, in place and in linear time; a module is recompiled.

    Inputs stay in front in their own order (it is the signature) and the output last, wherever ``nodes`` has them.

    Raises:
        ProblemError: ``nodes`` are not exactly the graph's nodes; the graph is as it was.
    """
    present = list(graph_of(gm).nodes)
    if len(nodes) != len(present) or set(nodes) != set(present):
        raise ProblemError(
            f"the order has {len(nodes)} nodes ({len(set(nodes))} different) and the graph has {len(present)}. "
            "List each of the graph's nodes once."
        )
    inputs = [node for node in present if node.op == "placeholder"]
    link(gm, with_ends(nodes, inputs))


def with_ends(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes, inputs in front in the order given, the output last."""
    body = [node for node in nodes if node.op not in ("placeholder", "output")]
    return [*inputs, *body, *(node for node in nodes if node.op == "output")]


def link(gm: fx.GraphModule | fx.Graph, order: Sequence[fx.Node]) -> None:
    """Set the order, which must be right: all nodes of the graph. A module is recompiled."""
    last = next(iter(graph_of(gm).nodes), None)
    for node in order:
        if last is not None and node is not last:
            last.append(node)
        last = node
    if isinstance(gm, fx.GraphModule):
        gm.recompile()
