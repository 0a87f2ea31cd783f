"""What a precompiled artifact says of its order: a mark on the graph's output, which the file keeps."""

from torch import fx

_MARK = "overlap_sched"


def mark(gm: fx.GraphModule) -> fx.GraphModule:
    """Note on the graph that its order is ours; returns it."""
    gm.graph.output_node().meta[_MARK] = True
    return gm


def is_marked(gm: fx.GraphModule) -> bool:
    """Has our pass seen this graph, in this process or where it was precompiled?"""
    return _MARK in gm.graph.output_node().meta
