"""How a tensor is cut into parts: along one dimension, into blocks.

A dimension of size ``outer * parts * inner`` is cut into ``outer`` runs, each of ``parts`` blocks of ``inner`` rows.
Part p has block p of every run, so it is the tensor with ``outer * inner`` rows there::

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

Shape = tuple[int, ...]


class EndsError(Exception):
    """A graph-level dimension ends at an operator; the message says why."""


class Uncut(Enum):
    """What else a result of an operator in parts can be."""

    SAME = "same"
    """The same for every part, or of no meaning: the seed of an attention without dropout."""
    PARTIAL = "partial"
    """As large as the whole; the sum over the parts is the whole."""


@dataclass(frozen=True, order=True)
class Cut:
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
