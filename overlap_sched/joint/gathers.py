"""Gathers that the model's author wants to run again in backward, one by one: what could rather be kept."""

import torch
from torch import fx

from overlap_sched.joint.graphs import runs_again

_GATHER = "all_gather_into_tensor"
_BESIDE = frozenset({
    "_to_copy", "convert_element_type", "constant_pad_nd", "cat", "clone", "slice", "view", "reshape", "alias",
    "contiguous", "detach", "wait_tensor", "_unsafe_view", "t", "permute", "transpose", "expand", "squeeze",
    "unsqueeze",
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
    names = [_name(node) for node in group]
    return any(name.startswith(_GATHER) for name in names) and all(
        name in _BESIDE or name.startswith(_GATHER) for name in names
    )


def _name(node: fx.Node) -> str:
    packet = node.target.overloadpacket if isinstance(node.target, torch._ops.OpOverload) else node.target
    return str(getattr(packet, "__name__", packet))
