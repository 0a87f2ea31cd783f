"""Gathers that the model's author wants to run again in backward, one by one: what could rather be kept."""

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.joint.graphs import runs_again

_FUNCTIONAL, _ATEN = torch.ops._c10d_functional, torch.ops.aten
_GATHERS: frozenset[Any] = frozenset(
    packet
    for name in ("", "_coalesced", "_out", "_single")
    if (packet := getattr(_FUNCTIONAL, f"all_gather_into_tensor{name}", None)) is not None
)
"""Not all are in every version of torch."""
_BESIDE: frozenset[Any] = frozenset({
    _ATEN._to_copy, _ATEN._unsafe_view, _ATEN.alias, _ATEN.cat, _ATEN.clone, _ATEN.constant_pad_nd, _ATEN.contiguous,
    _ATEN.detach, _ATEN.expand, _ATEN.permute, _ATEN.reshape, _ATEN.slice, _ATEN.squeeze, _ATEN.t, _ATEN.transpose,
    _ATEN.unsqueeze, _ATEN.view, _FUNCTIONAL.wait_tensor, torch.ops.prims.convert_element_type,
})  # fmt: skip
"""Operators that belong to a gather: types, padding, views."""


def gathers_again(gm: fx.GraphModule) -> list[frozenset[str]]:
    """Per checkpoint that is one gather and nothing that computes: names of its nodes; in the order of the graph.

    As :func:`overlap_sched.distributed.shard` makes them with ``reshard_after_forward``. AOTAutograd numbers
    checkpoints (``node.meta["ac_graph_id"]``).
    """
    groups: dict[int, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and runs_again(node) and "ac_graph_id" in node.meta:
            groups.setdefault(node.meta["ac_graph_id"], []).append(node)
    return [frozenset(node.name for node in group) for group in groups.values() if _is_gather(group)]


def _is_gather(group: list[fx.Node]) -> bool:
    packets = {_packet(node) for node in group}
    return not packets.isdisjoint(_GATHERS) and packets <= _GATHERS | _BESIDE


def _packet(node: fx.Node) -> Any:
    """The operator, whatever its overload; what is none stands for itself."""
    return node.target.overloadpacket if isinstance(node.target, OpOverload) else node.target
