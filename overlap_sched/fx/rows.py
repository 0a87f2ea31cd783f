"""Operators that touch only some rows of a tensor: those that indices name.

An embedding reads the rows of its tokens, not its table; so do gathers. An in-place scatter writes the rows that it is
given. What returns a new tensor of the whole size has really written all of it: the gradient of an embedding
(``embedding_dense_backward``) is filled with zeros first, ``index_put`` copies.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fx.reading import Reading


class Rows(NamedTuple):
    """How an operator uses its first argument, the table.

    Attributes:
        values: Of one that writes rows: position and name of what it writes; ``None``: it reads rows, as many as it
            gives.
        adds: Whether rows are read, too, before they are written.
    """

    values: tuple[int, str] | None = None
    adds: bool = False


_BY_NAME: Mapping[str, Rows] = {
    "embedding": Rows(),
    "index": Rows(),
    "_unsafe_index": Rows(),
    "index_select": Rows(),
    "gather": Rows(),
    "take": Rows(),
    "index_put_": Rows((2, "values")),
    "index_copy_": Rows((3, "source")),
    "index_add_": Rows((3, "source"), adds=True),
    "scatter_": Rows((3, "src")),
    "scatter_add_": Rows((3, "src"), adds=True),
    "scatter_reduce_": Rows((3, "src"), adds=True),
}
_ROWS: Mapping[Any, Rows] = {getattr(torch.ops.aten, name): rows for name, rows in _BY_NAME.items()}


def untouched_bytes(r: Reading, v: int) -> int:
    """Bytes of a node's table, as often as it is counted among what the node takes and gives, that it leaves alone."""
    node = r.nodes[v]
    target = node.target
    rows = _ROWS.get(target.overloadpacket) if isinstance(target, OpOverload) else None
    table = _bytes_of(r, v, node.args[0]) if rows is not None and node.args else None
    if rows is None or table is None:
        return 0
    if rows.values is None:
        return max(0, table - r.value_bytes[v])
    position, name = rows.values
    source = node.args[position] if len(node.args) > position else node.kwargs.get(name)
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim():
        return 0  # one number for whoever is named: as many as there are rows, perhaps
    touched = min(table, _bytes_of(r, v, source) or 0)
    adds = rows.adds or (name == "values" and _accumulates(node))
    return (table - touched) * 2 if adds else table - touched + table


def _accumulates(node: fx.Node) -> bool:
    return bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False))


def _bytes_of(r: Reading, v: int, argument: Any) -> int | None:
    return next((r.value_bytes[u] for u in r.inputs[v] if r.nodes[u] is argument), None)
