"""Shapes where fake execution has none: printed annotations, data-dependent sizes, and results that depend on them.

Where nothing helps: why, and what to do about it, in words.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._dtype_abbrs import dtype_abbrs

from overlap_sched.dump.literals import device_named
from overlap_sched.dump.operators import UnknownOp

FALLBACK_SIZE = 8192
"""A data-dependent size about which the graph says nothing more (Inductor has the same fallback)."""

_DTYPES = {short: dtype for dtype, short in dtype_abbrs.items()}
_TENSOR = re.compile(r"^(?:\w+\()?(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(\w+(?::\d+)?)?")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between sizes, not between the arguments of ``Max(1, s0)``."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_UNBOUNDED = frozenset({torch.ops.aten.repeat_interleave.Tensor})


def annotated(text: str, device: torch.device, size_of: Callable[[str], int | None]) -> torch.Tensor | int | None:
    """The value that an annotation such as ``bf16[8, 4][4, 1]cuda:0`` or ``Sym(s0)`` describes; None: none.

    To be called under the fake mode.
    """
    if text.startswith("Sym(") and text.endswith(")"):
        return _size(text[4:-1], size_of)
    match = _TENSOR.match(text)
    if match is None or match[1] not in _DTYPES:
        return None
    shape = _sizes(match[2], size_of)
    stride = None if match[3] is None else _sizes(match[3], size_of)
    if shape is None or (stride is not None and len(stride) != len(shape)):
        return None
    try:
        where = device_named(match[4]) if match[4] else device
        if stride is None:
            return torch.empty(shape, dtype=_DTYPES[match[1]], device=where)
        return torch.empty_strided(shape, stride, dtype=_DTYPES[match[1]], device=where)
    except RuntimeError:
        return None


def contradicts(text: str, value: Any) -> bool:
    """Tell whether an annotation without symbols gives a tensor another shape or type than it has."""
    match = _TENSOR.match(text)
    if match is None or match[1] not in _DTYPES or not isinstance(value, torch.Tensor):
        return False
    return _sizes(match[2], lambda _: None) != list(value.shape) or _DTYPES[match[1]] is not value.dtype


def depends_on_symbols(text: str) -> bool:
    """Tell whether an annotation has sizes with names in them."""
    match = _TENSOR.match(text)
    return match is None or bool(re.search(r"[A-Za-z]", f"{match[2]},{match[3] or ''}"))


def _sizes(text: str, size_of: Callable[[str], int | None]) -> list[int] | None:
    sizes = [_size(part, size_of) for part in _COMMA.split(text) if part.strip()]
    return None if any(size is None for size in sizes) else [size for size in sizes if size is not None]


def _size(text: str, size_of: Callable[[str], int | None]) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"\d+", text) else size_of(text)


def concrete(value: Any, target: Any, inputs: Sequence[torch.Tensor], size_of: Callable[[], int]) -> tuple[Any, int]:
    """`value` with every data-dependent size replaced, and how many there were.

    A result never gets more rows than the largest input has elements, except where an operator repeats.
    """
    count = 0

    def one(item: Any) -> Any:
        nonlocal count
        if not any(isinstance(n, _SYMBOLIC) for n in (item.shape if isinstance(item, torch.Tensor) else (item,))):
            return item
        count += 1
        size = size_of()
        if isinstance(item, torch.SymInt):
            return size
        if not isinstance(item, torch.Tensor):
            return True if isinstance(item, torch.SymBool) else 1.0
        most = size if target in _UNBOUNDED else max([tensor.numel() for tensor in inputs], default=size)
        shape = [min(size, most) if isinstance(n, torch.SymInt) else n for n in item.shape]
        return torch.empty(shape, dtype=item.dtype, device=item.device)

    return torch.utils._pytree.tree_map(one, value), count


def balanced_split(nodes: Iterable[fx.Node], rows_of: Callable[[fx.Node], int | None]) -> int | None:
    """The size of a split where an all_to_all spreads its rows evenly: the first whose rows are known; None: none."""
    for node in uneven(nodes):
        source, sent = node.args[0], node.args[2]
        assert isinstance(source, fx.Node)
        rows = rows_of(source)
        if rows is not None:
            return rows // len(sent)
    return None


def uneven(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Each all_to_all whose splits are data-dependent."""
    target = torch.ops._c10d_functional.all_to_all_single.default
    for node in nodes:
        if node.target is target and len(node.args) >= 3 and isinstance(node.args[0], fx.Node):
            sent = node.args[2]
            if isinstance(sent, list | tuple) and any(isinstance(split, fx.Node) for split in sent):
                yield node


def result_like(target: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Return what an operator would return if its data-dependent sizes did fit; None where nothing is known.

    For nodes that refuse sizes which were guessed: a view takes the sizes it asks for, the rest follow their
    largest input.
    """
    if not tensors or not isinstance(target, torch._ops.OpOverload):
        return None
    aten = torch.ops.aten
    first = tensors[0]
    if target in (aten.split_with_sizes.default, aten.split_with_sizes_copy.default):
        dim = args[2] if len(args) > 2 else 0
        shapes = [[n if i != dim % first.dim() else part for i, n in enumerate(first.shape)] for part in args[1]]
        return [first.new_empty(shape) for shape in shapes]
    if target in (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default):
        known = math.prod(n for n in args[1] if n >= 0)
        return first.new_empty([n if n >= 0 else max(first.numel() // max(known, 1), 1) for n in args[1]])
    if len(target._schema.returns) == 1 and str(target._schema.returns[0].type) == "Tensor":
        return torch.empty_like(max(tensors, key=lambda tensor: tensor.numel()))
    return None


def missing(node: fx.Node) -> str:
    """Why fake execution has no value for a node."""
    name = operator_missing(node)
    if name is not None:
        return f"this torch build does not know the operator {name}"
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return "the dump does not hold the body that this higher-order operator runs"
    return "this torch build cannot tell the shapes of its results"


def mend(node: fx.Node, constants: Sequence[fx.Node] = ()) -> str:
    """Say what the user can do about it; ``constants``: those of its inputs that the file describes nowhere."""
    parts = [user.name for user in node.users if user.target is operator.getitem]
    annotate = f'annotate it by hand (`{parts[0] if parts else node.name}: "bf16[8, 4]" = ...`).'
    if parts:
        annotate = annotate.replace("annotate it", "annotate each of its parts")
    if operator_missing(node) is not None:
        return f"Import the package that registers it first (--import PACKAGE on the command line), or {annotate}"
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"Load the graph as tlparse prints it for reading, bodies included (aot_forward_graph), or {annotate}"
    if constants:
        name = constants[0].target
        return f'torch has not written self.{name}: annotate it by hand (`{name}: "i64[4]" = self.{name}`).'
    return f"Load it with the torch that wrote it, or {annotate}"


def operator_missing(node: fx.Node) -> str | None:
    """Return the name of the operator that this torch lacks: the node's own, or that which a higher-order one calls."""
    found = [item for item in (node.target, *node.args) if isinstance(item, UnknownOp)]
    return found[0].__name__ if found else None
