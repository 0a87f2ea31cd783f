"""What copies its first input and writes rows of the copy, by operator; tables have 8 rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.support.fx_graphs import ATEN

ROWS, COLUMNS = 8, 8


def at(x: Tensor) -> Tensor:
    """Rows to write, by what is in a tensor: some twice."""
    return (x.sum(1) * 5.0).to(torch.int64) % ROWS


def zeros() -> Tensor:
    return ATEN.full.default([ROWS, COLUMNS], 0.5)


def put(x: Tensor, rows: Tensor, add: bool = True) -> Tensor:
    return ATEN.index_put.default(x, [at(rows)], rows, add)


def distinct(rows: Tensor) -> Tensor:
    """A row for each, none twice: what copies is only then the same each time."""
    return (torch.arange(rows.shape[0]) + at(rows)[0]) % ROWS


def wide(rows: Tensor, index: Tensor) -> Tensor:
    return index.unsqueeze(1).expand(-1, COLUMNS).contiguous()


WRITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "aten.index_add.default": lambda x, r: ATEN.index_add.default(x, 0, at(r), r),
    "aten.index_copy.default": lambda x, r: ATEN.index_copy.default(x, 0, distinct(r), r),
    "aten.index_put.default": put,
    "aten.scatter.reduce": lambda x, r: ATEN.scatter.reduce(x, 0, wide(r, at(r)), r, reduce="add"),
    "aten.scatter.src": lambda x, r: ATEN.scatter.src(x, 0, wide(r, distinct(r)), r),
    "aten.scatter_add.default": lambda x, r: ATEN.scatter_add.default(x, 0, wide(r, at(r)), r),
    "aten.scatter_reduce.two": lambda x, r: ATEN.scatter_reduce.two(x, 0, wide(r, at(r)), r, "sum"),
}
