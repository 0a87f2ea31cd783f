"""What is to be known of a graph of GraphPP before it is ordered: its name, what its caller holds, whom it meets."""

from collections.abc import Sequence

from torch import fx

from overlap_sched.fx.calls import Communications, live_ranks
from overlap_sched.fx.lifting import STAYS

_CALLED = {
    "fw": "forward",
    "full_bw": "backward",
    "bw_di": "backward to inputs",
    "bw_dw": "backward to weights",
    "unshard": "gathers",
    "reduce_grad": "reductions",
    "multiplex": "forward beside a backward",
}
"""What ``graph_builder._annotate_graph_pp_graph`` of torchtitan calls a graph, and what we do."""


def stage_name(gm: fx.GraphModule) -> str:
    """Name a graph of GraphPP, the same on all ranks of its stage: ``"stage 0 forward"``; ``""``: it is none."""
    found = gm.graph.output_node().meta
    called, stage = found.get("graph_pp_callable"), found.get("graph_pp_stage_index")
    return "" if called is None or stage is None else f"stage {stage} {_CALLED.get(called, called)}"


def hold_inputs(gm: fx.GraphModule) -> None:
    """Note that no input is freed while a graph of GraphPP runs: its runtime holds them all.

    They stand in the frames of ``runner._handle_*`` and of ``GraphTrainerStageGraphs``, saved values, too.
    """
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta[STAYS] = True


def strangers(gm: fx.GraphModule, ranks: Sequence[int]) -> list[int]:
    """List the ranks with which a graph communicates though they are not among those that are asked, ascending."""
    known = Communications(gm.graph)
    groups = [one for node in gm.graph.nodes for launched in known.of(node) for one in launched.groups]
    found = (live_ranks(name if live is None else live) or () for name, live in groups)
    return sorted({rank for each in found for rank in each} - set(ranks))
