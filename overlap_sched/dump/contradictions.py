"""Sizes in a dump that contradict each other: splits of an all_to_all that do not add to the rows that it sends.

Whoever fills in what torch did not know (``u8 = u9 = 512``), or traces with other tokens, leaves sizes behind that do
not fit together. Then no size of data-dependent kind in the file counts, and all come from one assumption: that tokens
are spread evenly over ranks and experts, by the first all_to_all whose rows are known.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from overlap_sched.dump.guess import uneven
from overlap_sched.dump.inputs import Input, Inputs, SizeInput

_UNBACKED = re.compile(r"u\d+")
_LISTED = 4
_aten = torch.ops.aten
_MAKERS = frozenset({_aten.full.default, _aten.empty.memory_format, _aten.zeros.default})
_ROWS_KEPT = frozenset({_aten.slice.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten.clone.default})
"""What gives a tensor like its first argument, perhaps shorter."""


def is_unbacked(symbol: str) -> bool:
    """Tell whether a symbol is of a size that only the data knows: ``u0``."""
    return _UNBACKED.fullmatch(symbol) is not None


class Contradiction(NamedTuple):
    """One all_to_all.

    Attributes:
        name: Of its node.
        rows: That it has.
        splits: That it sends, in rows.
        nodes: Where the splits come from, those that are no constants.
    """

    name: str
    rows: int
    splits: tuple[int, ...]
    nodes: tuple[str, ...]


def contradictions(nodes: Sequence[fx.Node], value_of: Callable[[fx.Node], Any]) -> list[Contradiction]:
    """Each all_to_all with data-dependent splits that do not add to its rows."""
    found = []
    for node in uneven(nodes):
        source, sent = node.args[0], node.args[2]
        tensor = value_of(source) if isinstance(source, fx.Node) else None
        splits = [value_of(split) if isinstance(split, fx.Node) else split for split in sent]
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or not all(type(n) is int for n in splits):
            continue
        if sum(splits) != tensor.shape[0]:
            names = tuple(dict.fromkeys(split.name for split in sent if isinstance(split, fx.Node)))
            found.append(Contradiction(node.name, tensor.shape[0], tuple(splits), names))
    return found


def splits_of(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Nodes that are sizes for an all_to_all with data-dependent splits, and of how many splits each is the sum.

    Splits themselves are one; that to which its input is cut, and what that was cut from, are all that it sends.
    """
    found: dict[fx.Node, int] = {}
    for node in uneven(nodes):
        lists = [splits for splits in node.args[1:3] if isinstance(splits, list | tuple)]
        found.update({split: 1 for splits in lists for split in splits if isinstance(split, fx.Node)})
        source = node.args[0]
        while isinstance(source, fx.Node):
            size = _rows_given(source)
            if isinstance(size, fx.Node):
                found.setdefault(size, len(lists[-1]))
            source = source.args[0] if source.target in _ROWS_KEPT else None
    return found


def _rows_given(node: fx.Node) -> Any:
    """The argument that says how many rows a node gives; ``None``: it has none, or cuts another dimension."""
    if node.target is _aten.slice.Tensor:
        first_rows = len(node.args) > 3 and node.args[1:3] == (0, 0)
        return node.args[3] if first_rows else None
    shape = node.args[0] if node.target in _MAKERS else None
    return shape[0] if isinstance(shape, list | tuple) and shape else None


def without_hints(inputs: Inputs, of: Mapping[fx.Node, Input], splits: Collection[fx.Node]) -> Inputs:
    """The inputs as if the file said nothing of data-dependent sizes: symbols ``u0``, and ``splits`` of all_to_alls."""
    forgotten = {
        id(item)
        for node, item in of.items()
        if isinstance(item, SizeInput) and (node in splits or is_unbacked(item.symbol or ""))
    }
    kept = [
        replace(item, value=None) if isinstance(item, SizeInput) and id(item) in forgotten else item
        for item in inputs.inputs
    ]
    return replace(inputs, inputs=kept, symbols=backed(inputs.symbols))


def backed(symbols: Mapping[str, int]) -> dict[str, int]:
    """Symbols but for data-dependent ones."""
    return {name: size for name, size in symbols.items() if not is_unbacked(name)}


def note_on(first: Contradiction, taken: int | None, symbols: Sequence[str]) -> str:
    """Say what the contradictions are: by the first, with names by which sizes can be given.

    ``taken``: the rows of each split that were taken instead; ``None``: the caller's own sizes contradict each other.
    """
    added = f"{first.name}: splits add to {sum(first.splits):,} of {first.rows:,} rows"
    names = list(symbols or first.nodes)
    even = first.rows // len(first.splits) if taken is None else taken
    more = f" and so on for {', '.join(names[1:_LISTED])}{', ...' if len(names) > _LISTED else ''}" if names[1:] else ""
    give = f"--size {names[0]}={even}{more}" if names else ""
    if taken is None:
        return f"all_to_all whose splits do not add to its rows ({added}); spread evenly: {give}"
    return (
        f"all_to_all whose splits, by the sizes in the file, do not add to its rows ({added}); these sizes are left "
        f"out and experts taken as balanced, {taken:,} rows a split; to give your own: {give}"
    )
