"""What a cut becomes where an operator only moves elements: views, broadcasts, pieces, collectives."""

from collections.abc import Sequence
from math import prod

from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Shape


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
