"""Passes are given a graph, or the module that runs it."""

from torch import fx


def graph_of(gm: fx.GraphModule | fx.Graph) -> fx.Graph:
    """The graph itself."""
    return gm.graph if isinstance(gm, fx.GraphModule) else gm
