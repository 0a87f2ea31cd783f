"""Take out of a joint graph what Inductor's own passes take out: aliases, views of views, double transposes."""

from typing import cast

import torch
from torch import fx

_ALIAS = torch.ops.aten.alias.default
_PERMUTE = torch.ops.aten.permute.default
_VIEW = torch.ops.aten.view.default


def simplify(graph: fx.Graph) -> None:
    """Shorten chains of aliases, views and permutations in place, and drop what nobody uses."""
    for node in list(graph.nodes):
        if node.target is _ALIAS:
            node.replace_all_uses_with(node.args[0])
        elif node.target is _VIEW:
            _shorten_view(node)
        elif node.target is _PERMUTE and node.args[0].target is _PERMUTE:
            _cancel_permutes(node)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.target in (_ALIAS, _PERMUTE, _VIEW):
            graph.erase_node(node)


def _shorten_view(node: fx.Node) -> None:
    """A view of a view is a view of the source; one to the shape that the source has is the source."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if source.target is _VIEW:
        node.update_arg(0, source.args[0])
        node.update_arg(1, list(node.meta["val"].shape))
        source = node.args[0]
    if isinstance(source, fx.Node) and source.meta["val"].shape == node.meta["val"].shape:
        node.replace_all_uses_with(source)


def _cancel_permutes(node: fx.Node) -> None:
    """A permutation that undoes the one before it is the source (the gradient of a transposed weight, say)."""
    inner = node.args[0]
    assert isinstance(inner, fx.Node)
    source = inner.args[0]
    first, second = cast(list[int], inner.args[1]), cast(list[int], node.args[1])
    assert isinstance(source, fx.Node)
    if [first[axis] for axis in second] == list(range(len(first))):
        node.replace_all_uses_with(source)
