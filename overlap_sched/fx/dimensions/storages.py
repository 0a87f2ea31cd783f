"""Whose storage a value is in."""

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload


def is_view(node: Any) -> bool:
    """Tell whether a call returns views of what it takes: by its schema; one operator's does not say it."""
    target = getattr(node, "target", None)
    if target is torch.ops.aten._unsafe_view.default:
        return True
    return isinstance(target, OpOverload) and any(one.alias_info is not None for one in target._schema.returns)


def maker_of(node: Any) -> tuple[fx.Node, int]:
    """Who allocates a value, and which of its allocations it is: behind views, waits and ``getitem``."""
    while True:
        source: Any = node.args[0] if node.op == "call_function" and node.args else None
        if is_view(node) or (node.target is operator.getitem and is_view(source)):
            node = source
        elif node.target is operator.getitem:
            return source, sum(isinstance(value, torch.Tensor) for value in source.meta["val"][: node.args[1]])
        else:
            return (source if node.target is torch.ops._c10d_functional.wait_tensor.default else node), 0
