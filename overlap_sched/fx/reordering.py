"""Put an order back into an FX graph."""

from collections.abc import Sequence

from torch import fx

from overlap_sched.errors import OrderError


def reorder(gm: fx.GraphModule | fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Make ``nodes`` the order of the graph, in place and in linear time; a module is recompiled.

    Inputs stay in front in their own order (it is the signature) and the output last, wherever ``nodes`` has them.

    Raises:
        OrderError: ``nodes`` are not exactly the graph's nodes; the graph is as it was.
    """
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    present = list(graph.nodes)
    if len(nodes) != len(present) or set(nodes) != set(present):
        raise OrderError(
            f"the order has {len(nodes)} nodes ({len(set(nodes))} different) and the graph has {len(present)}. "
            "List each of the graph's nodes once."
        )
    outputs = [node for node in present if node.op == "output"]
    body = [node for node in nodes if node.op not in ("placeholder", "output")]
    last = present[0] if present else None
    for node in [*(n for n in present if n.op == "placeholder"), *body, *outputs]:
        if last is not None and node is not last:
            last.append(node)
        last = node
    if isinstance(gm, fx.GraphModule):
        gm.recompile()
