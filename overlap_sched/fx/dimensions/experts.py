"""Fissions of layers with experts: tokens in parts, so that one part's all_to_all hides behind another's compute.

Where numbers are sorted (tokens by their expert), the dimension is followed back to where the tokens come from, and
grows from there through forward and backward: all between two attentions, in all layers. A narrower one is tried, too:
from where rows are picked to where they are added up again, as torchtitan chunks its layers by hand.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from overlap_sched.fx.dimensions.border import fission_of
from overlap_sched.fx.dimensions.call import shape
from overlap_sched.fx.dimensions.region import Region, inverse, region_from
from overlap_sched.fx.lifting import Lifted
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, cuts_of
from overlap_sched.transform.fission import Fission

PARTS = (2, 4)
FARTHEST = 200
"""Calls that are looked through on the way back to where the tokens come from."""
_SORTS = (torch.ops.aten.sort.stable, torch.ops.aten.sort.default)


def expert_fissions(lifted: Lifted, parts: Sequence[int] = PARTS) -> list[Fission]:
    """Fissions of all layers with experts at once; by ascending number of parts, the wider one first.

    Gradients of weights are sums over the parts, and rounded otherwise.

    Args:
        lifted: Of a step, or of its forward or backward graph.
        parts: Into how many; where the tokens do not divide, it is left out.
    """
    found: dict[Fission, None] = {}
    for n in parts:
        for region in expert_regions(lifted.nodes[0].graph, n):
            one = fission_of(region)
            if one is not None:
                found[one] = None
    return list(found)


def expert_regions(graph: fx.Graph, parts: int) -> Iterator[Region]:
    """Yield regions that can run in parts: grown from where the tokens come from."""
    seeds: dict[fx.Node, Cut] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _SORTS:
            seeds.update(_source(node, parts))
    if not seeds:
        return
    wide = region_from(graph, seeds, parts, sums=True)
    yield wide
    only = {node for node in wide.told if _about_rows(wide, node)}
    entering = {u: cut for node in only for u in node.all_input_nodes if u not in only and (cut := wide.cut(u))}
    if entering:
        yield region_from(graph, entering, parts, only=only, sums=True)


def _about_rows(region: Region, node: fx.Node) -> bool:
    """Tell whether a call takes or gives something that each part has its own of."""
    return node in region.routed or any(one in region.routed for one in (*node.all_input_nodes, *_results(node)))


def _results(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.target is operator.getitem]


def _source(sort: fx.Node, parts: int) -> Mapping[fx.Node, Cut]:
    """Where the tokens come from that are sorted by expert; empty: they cannot be cut."""
    ids = sort.args[0]
    if not isinstance(ids, fx.Node):
        return {}
    try:
        if len(shape(ids)) != 1 or ids.meta["val"].is_floating_point():
            return {}
    except EndsError:
        return {}
    for cut in cuts_of(shape(ids), parts):
        if cut.outer == 1:
            return _back(ids, cut, parts)
    return {}


def _back(node: fx.Node, cut: Cut, parts: int) -> Mapping[fx.Node, Cut]:
    for _ in range(FARTHEST):
        needs = inverse(node, cut, parts)
        if not needs:
            break
        node, cut = max(needs.items(), key=lambda pair: pair[0].meta["val"].numel())
    return {node: cut}
