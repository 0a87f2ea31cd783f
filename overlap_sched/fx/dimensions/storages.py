"""Whose storage a value is in, and who writes to it.

In a part, a call that writes to its first argument writes to the part's own. That is as right as the functional
operator of the same name where nobody outside sees the storage: all that reads it runs in parts, too, and in the same
order.
"""

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

_WAIT = torch.ops._c10d_functional.wait_tensor.default


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
            return (source if node.target is _WAIT else node), 0


def functional(target: Any) -> Any:
    """The operator that gives what this one writes to its first argument; any other operator: itself."""
    if not isinstance(target, OpOverload) or not target._schema.is_mutable or target.namespace != "aten":
        return target
    packet, arguments = target._opname, target._schema.arguments
    written = [at for at, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]
    if written != [0] or not packet.endswith("_") or packet.endswith("__"):
        return target
    pure = getattr(torch.ops.aten, packet[:-1], None)
    return getattr(pure, target._overloadname, target) if pure is not None else target


def writes(node: fx.Node) -> bool:
    """Tell whether a call writes to its first argument."""
    return functional(node.target) is not node.target


def written_outside(maker: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Tell whether a call outside writes to a storage that ``maker`` has made: each part would have one of its own."""
    return any(user not in inside and writes(user) and user.args[0] is one for one, user in _takers(maker))


def shared(node: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Tell whether anyone outside sees the storage that a value is in."""
    maker, result = maker_of(node)
    return maker not in inside or any(user not in inside for _, user in _takers(maker, result))


def _takers(maker: fx.Node, result: int | None = None) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Who takes what a call has made, or what looks at that: pairs of what is taken, and who does.

    ``result``: which of its allocations; ``None``: all.
    """
    todo, seen = [maker], {maker}
    while todo:
        one = todo.pop()
        for user in one.users:
            if user.target is operator.getitem and one is maker and result not in (None, maker_of(user)[1]):
                continue
            yield one, user
            if user not in seen and (is_view(user) or user.target in (operator.getitem, _WAIT)):
                seen.add(user)
                todo.append(user)
