"""Graph-level dimensions: how a cut of one value goes through operators to others. Shapes in, cuts out; no torch.

After the dimension graph of MAGIS (ASPLOS 2024, section 4.2): its vertices are (value, dimension), its edges lead
through operators, and a connected part of it is one dimension of the whole graph: batch, tokens, heads. Ours are
(value, dimension, block): reshaping and gathering put several dimensions into one, and a part is then not a range of it
but every so many rows (:class:`Cut`).

What each operator does is known by :mod:`overlap_sched.fx.dimensions`; this module is the arithmetic behind it.

A tensor is cut into parts along one dimension, into blocks. A dimension of size ``outer * parts * inner`` is cut into
``outer`` runs, each of ``parts`` blocks of ``inner`` rows. Part p has block p of every run, so it is the tensor with
``outer * inner`` rows there::

    rows      0 1 2 3 4 5 6 7       two parts
    Cut(0)    0 0 0 0 1 1 1 1       outer 1, inner 4: a range; what slicing a batch gives
    outer 2   0 0 1 1 0 0 1 1       inner 2: two ranks' rows, gathered; each had sent half of its own
    outer 4   0 1 0 1 0 1 0 1       inner 1: batch behind tokens, flattened

So a gather along dimension 0 of n ranks makes ``outer`` n times as large: part p of what is gathered are the parts p of
all ranks, a stride of the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import msgspec

Shape = tuple[int, ...]


class EndsError(Exception):
    """A graph-level dimension ends at an operator; the message says why."""


class Uncut(Enum):
    """What else a result of an operator in parts can be."""

    SAME = "same"
    """The same for every part, or of no meaning: the seed of an attention without dropout."""
    PARTIAL = "partial"
    """As large as the whole; the sum over the parts is the whole."""


class Cut(msgspec.Struct, frozen=True, order=True, array_like=True):
    """See the picture above.

    Attributes:
        dim: The dimension, counted from the front.
        outer: Runs.
        inner: Rows of a block.
    """

    dim: int
    outer: int = 1
    inner: int = 1

    def moved(self, dim: int) -> "Cut":
        """The same blocks along another dimension."""
        return Cut(dim, self.outer, self.inner)

    def rows(self, parts: int) -> int:
        """The size of the dimension that is cut."""
        return self.outer * parts * self.inner

    def part(self, shape: Sequence[int]) -> Shape:
        """The shape of a part of a tensor of this shape."""
        return (*shape[: self.dim], self.outer * self.inner, *shape[self.dim + 1 :])


@dataclass(frozen=True)
class Routed:
    """Each part has its own, and the whole is not put together of them: rows that were sorted, and numbers about them.

    Attributes:
        rows: The dimension of the rows; ``None``: it has no row for each of them (counts, offsets, one number).
        of: How the dimension is cut whose rows these numbers name; ``None``: they name none, or it is not known which.
        reckoned: Whether they were reckoned from numbers that name rows, so that it is not known what they name.
    """

    rows: int | None
    of: Cut | None = None
    reckoned: bool = False


Given = Cut | Uncut | Routed
"""How one result of an operator comes out of its parts."""


def range_cut(shape: Sequence[int], dim: int, parts: int) -> Cut:
    """The cut of a dimension into ranges.

    Raises:
        EndsError: The dimension cannot be cut into so many equal parts.
    """
    if not -len(shape) <= dim < len(shape) or shape[dim] % parts or not shape[dim]:
        raise EndsError(f"dimension {dim} of a tensor of shape {tuple(shape)} cannot be cut into {parts} equal parts")
    return Cut(dim % len(shape), 1, shape[dim] // parts)


def is_range(cut: Cut, shape: Sequence[int]) -> bool:
    """Tell whether a part of a contiguous tensor is contiguous, too: a view of it."""
    return cut.outer * prod(shape[: cut.dim]) == 1


def is_cut_of(cut: Cut, shape: Sequence[int], parts: int) -> bool:
    """Tell whether a tensor of this shape can be cut so."""
    return 0 <= cut.dim < len(shape) and shape[cut.dim] == cut.rows(parts)


def cuts_of(shape: Sequence[int], parts: int) -> list[Cut]:
    """All cuts of a tensor into so many parts: by dimension, then by runs."""
    found = []
    for dim, size in enumerate(shape):
        if size and size % parts == 0:
            blocks = size // parts
            found += [Cut(dim, outer, blocks // outer) for outer in range(1, blocks + 1) if blocks % outer == 0]
    return found


def through_view(cut: Cut, old: Sequence[int], new: Sequence[int], parts: int) -> Cut:
    """A view of the same elements in the same order.

    Elements before, in and behind a block are counted; in the new shape they are looked for.

    Raises:
        EndsError: The new shape has no dimension that keeps the blocks together.
    """
    before = prod(old[: cut.dim]) * cut.outer
    behind = cut.inner * prod(old[cut.dim + 1 :])
    for dim, size in enumerate(new):
        runs, above, below = prod(new[:dim]), 0, prod(new[dim + 1 :])
        if not runs or not below or before % runs or behind % below:
            continue
        above, below = before // runs, behind // below
        if above * parts * below == size:
            return Cut(dim, above, below)
    raise EndsError(f"a view from {tuple(old)} to {tuple(new)} breaks up the blocks of {cut}")


def broadcast(cut: Cut, taken: Sequence[int], given: Sequence[int]) -> Cut:
    """From an operand to the result of an operator that broadcasts: dimensions are counted from behind."""
    return cut.moved(cut.dim + len(given) - len(taken))


def operand(cut: Cut, given: Sequence[int], taken: Sequence[int]) -> Cut | None:
    """From such a result to an operand; ``None``: that is broadcast along the dimension; parts take it whole."""
    dim = cut.dim - len(given) + len(taken)
    return None if dim < 0 or (taken[dim] == 1 and given[cut.dim] != 1) else cut.moved(dim)


def through_permute(cut: Cut, dims: Sequence[int]) -> Cut:
    """Dimension ``dims[i]`` becomes dimension i."""
    return cut.moved([dim % len(dims) for dim in dims].index(cut.dim))


def without(cut: Cut, dims: Sequence[int], keep: bool, ndim: int) -> Cut:
    """Some dimensions are reduced: kept with size 1, or gone.

    Raises:
        EndsError: The one that is cut is among them.
    """
    gone = {dim % ndim for dim in dims} if dims else set(range(ndim))
    if cut.dim in gone:
        raise EndsError("it goes over the dimension that is cut")
    return cut if keep else cut.moved(cut.dim - sum(dim < cut.dim for dim in gone))


def piece(cut: Cut, dim: int, size: int, parts: int) -> tuple[Cut, int]:
    """A piece of a tensor, of so many rows of one dimension: its cut, and its rows in a part.

    Raises:
        EndsError: The piece does not consist of whole runs.
    """
    if dim != cut.dim:
        return cut, size
    run = parts * cut.inner
    if not size or size % run:
        raise EndsError(f"pieces of {size} rows are no multiple of a run of {run} rows")
    return Cut(dim, size // run, cut.inner), size // parts


def joined(cut: Cut, dim: int, shapes: Sequence[Shape], parts: int) -> tuple[list[Cut], Cut]:
    """Tensors are joined along a dimension: how each of them is to be cut, and how the result is.

    Raises:
        EndsError: One of them has no whole runs.
    """
    if dim != cut.dim:
        return [cut] * len(shapes), cut
    cuts = [piece(cut, dim, shape[dim], parts)[0] for shape in shapes]
    return cuts, Cut(dim, sum(one.outer for one in cuts), cut.inner)


def through_gather(cut: Cut, ranks: int) -> Cut:
    """All ranks' tensors one behind the other along dimension 0: each sends the part of its own."""
    return Cut(0, cut.outer * ranks, cut.inner) if cut.dim == 0 else cut


def through_scatter(cut: Cut, ranks: int) -> Cut:
    """Each rank keeps its share of dimension 0.

    Raises:
        EndsError: A share does not consist of whole runs: parts would reach ranks whole, not in parts.
    """
    if cut.dim != 0:
        return cut
    if cut.outer % ranks:
        raise EndsError(f"{ranks} ranks share {cut.outer} runs: a part would not be a part of each share")
    return Cut(0, cut.outer // ranks, cut.inner)
