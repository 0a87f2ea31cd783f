"""How many values a dump may make: a short one can ask for ten million parts, or run one body again and again."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from overlap_sched.errors import InputTooLargeError
from overlap_sched.fx.operators import arguments_of

_aten = torch.ops.aten
_SPLIT_AT: Mapping[str, Callable[[int, Any], int]] = {
    "unbind": lambda length, _: length,
    "split": lambda length, size: math.ceil(length / max(size, 1)) if isinstance(size, int) else len(size),
    "chunk": lambda length, chunks: min(length, chunks),
    "tensor_split": lambda _, sections: sections if isinstance(sections, int) else 0,
}
"""How many parts an operator makes of a dimension of some length, by its name and second argument."""
_NAMES = {
    "unbind": "unbind", "unbind_copy": "unbind",
    "split": "split", "split_copy": "split", "unsafe_split": "split",
    "chunk": "chunk", "unsafe_chunk": "chunk",
    "tensor_split": "tensor_split", "hsplit": "tensor_split", "vsplit": "tensor_split", "dsplit": "tensor_split",
}  # fmt: skip


Place = Callable[[], str]
"""Names a node, for errors: made only when there is one."""


class ValueCount:
    """Counts the values of a graph, and refuses more than the limit.

    Args:
        limit: The largest number of nodes; each part of a list of results counts as one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def add(self, place: Place, value: Any) -> None:
        """Count what a node gives."""
        self.count += len(value) if isinstance(value, list | tuple) else 1
        if self.count > self.limit:
            raise self._too_many(f"{place()}: with this node")

    def check_parts(self, place: Place, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Count the parts that an operator is about to make, before it makes them."""
        parts = parts_made(target, args, kwargs)
        if self.count + parts > self.limit:
            raise self._too_many(f"{place()}: its result has {parts:,} parts; with them")

    def _too_many(self, where: str) -> InputTooLargeError:
        return InputTooLargeError(
            f"{where} the graph has more than {self.limit:,} nodes, which is the limit. "
            "Raise the limit (--max-nodes on the command line) if the graph is meant to be that large."
        )


def parts_made(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many parts an operator makes of its first argument; 0 for one that does not split."""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    name = getattr(packet, "__name__", "")
    if name not in _NAMES or packet is not getattr(_aten, name, None):
        return 0
    overload = target if isinstance(target, torch._ops.OpOverload) else getattr(target, target.overloads()[0])
    names = [argument.name for argument in overload._schema.arguments]
    given = arguments_of(overload, args, kwargs)
    source, how = given.get(names[0]), next((given[name] for name in names[1:] if name in given and name != "dim"), 0)
    if not isinstance(source, torch.Tensor) or not source.dim():
        return 0
    dim = given.get("dim", 0)
    length = source.shape[dim] if type(dim) is int and -source.dim() <= dim < source.dim() else 0
    if not all(type(leaf) is int for leaf in (length, *tree_leaves(how))):
        return 0  # symbolic: torch knows no number either
    return _SPLIT_AT[_NAMES[name]](length, how)
