"""What crosses the border of a region: the fission that it is."""

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.region import Region
from overlap_sched.fx.dimensions.storages import is_view, maker_of
from overlap_sched.transform.dimension_graph.cut import Cut, Given, Routed, Uncut, is_range
from overlap_sched.transform.fission import Fission, How, Leave, Slice

_NO_CUT = Cut(0)
_HOW: Mapping[Uncut, How] = {Uncut.SAME: "same", Uncut.PARTIAL: "sum"}


def fission_of(region: Region, *, returned_in_parts: bool = False) -> Fission | None:
    """The fission of a region; ``None``: it is empty, or one of its results cannot leave.

    Views that are used outside stay, and look at what leaves: then one value leaves for all views of it, laid out as
    it was. A collective whose launch is used outside (a graph that returns what is still in flight) leaves by its wait.

    Args:
        region: What runs in parts.
        returned_in_parts: What the graph's output alone uses is returned as a tuple of its parts.
    """
    inside = region.gives
    if not inside:
        return None
    stay: set[fx.Node] = set()
    leaving: dict[fx.Node, bool] = {}
    through = {wait for node in inside if (wait := _wait_of(node)) is not None and _outside(node, inside)}
    for node in reversed(inside):
        outside = [user for user in node.users if user not in inside or user in stay]
        if not outside and node not in through:
            continue
        returned = returned_in_parts and all(user.op == "output" for user in outside)
        if returned and is_view(node) and maker_of(node)[0] in inside:
            leaving[node] = True
        elif is_view(node):
            stay.add(node)
        elif node.target is operator.getitem and is_view(node.args[0]):
            stay.update((node, node.args[0]))
        elif node in through:
            leaving[node] = all(user.op == "output" for user in (*outside, *_outside(node.args[0], inside)))
        elif _wait_of(node) is None:
            leaving[node] = all(user.op == "output" for user in outside)
    leaves = []
    for node in inside:
        if node in leaving:
            given = inside[node]
            if isinstance(given, tuple | Routed):
                return None
            leaves.append(_leave(node, given, returned_in_parts and leaving[node]))
    return Fission(
        tuple(node.name for node in inside),
        region.parts,
        tuple(_slice(node, cut) for node, cut in region.slices.items()),
        tuple(leaves),
        tuple(node.name for node in inside if node in stay),
        tuple(pair for node in region.told for pair in _full(node, inside[node])),
    )


def _outside(node: Any, inside: Collection[fx.Node]) -> list[fx.Node]:
    return [user for user in node.users if user not in inside]


def _wait_of(node: fx.Node) -> fx.Node | None:
    """The wait for a launch; ``None``: the node launches nothing, or nobody waits for it."""
    waits = torch.ops._c10d_functional.wait_tensor.default
    return next((user for user in node.users if user.target is waits and user.args[0] is node), None)


def _leave(node: fx.Node, given: Cut | Uncut, returned_in_parts: bool) -> Leave:
    maker, result = maker_of(node)
    if isinstance(given, Uncut):
        return Leave(node.name, _HOW[given], _NO_CUT, _bytes(node), maker.name, result)
    how: How = "parts" if returned_in_parts else "cat"
    return Leave(node.name, how, given, _bytes(node), maker.name, result, _order(node.meta["val"]))


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """Dimensions as they lie in memory; empty: as they are listed."""
    if value.is_contiguous():
        return ()
    return tuple(sorted(range(value.ndim), key=lambda dim: (-value.stride(dim), dim)))


def _slice(node: fx.Node, cut: Cut) -> Slice:
    value = node.meta["val"]
    dense = value.is_contiguous() or not any(value.stride())  # one element, expanded: its slices are laid out as it is
    free = dense and is_range(cut, tuple(value.shape))
    maker, result = maker_of(node)
    return Slice(node.name, cut, _bytes(node), free, maker.name, result)


def _full(node: fx.Node, given: Given | tuple[Given, ...]) -> list[tuple[str, int]]:
    """Allocations of a call that are as large in every part as in the whole."""
    value = node.meta["val"]
    if not isinstance(given, tuple):
        return [(node.name, 0)] if _is_full(given) else []
    return [
        (node.name, sum(isinstance(one, torch.Tensor) for one in value[:at]))
        for at, way in enumerate(given)
        if _is_full(way) and isinstance(value[at], torch.Tensor)
    ]


def _is_full(given: Given) -> bool:
    return given.rows is None if isinstance(given, Routed) else not isinstance(given, Cut)


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel()) * int(value.dtype.itemsize)
