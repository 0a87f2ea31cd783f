"""Which nodes buckets and splits make, said once: a problem and an FX graph each have a :class:`Maker` that makes them.

So both have the same nodes, by the same names, in the same places, and an order of the one is an order of the other.
All inputs are contiguous (a functional collective wants that). What comes out of a packed gather has a row for each
rank, in which member i has some columns; what goes into a packed scatter has the same, and its result the members one
after the other::

    shards of rank r     a_r, b_r                          gradients    a (n rows), b (n rows)
    packed               a_r b_r                           packed       a_0 b_0 a_1 b_1 ...  (a row for each rank)
    gathered             a_0 b_0 a_1 b_1 ...               scattered    a_r b_r
    copied               a_0 a_1 ..., b_0 b_1 ...          parts        a_r, b_r

So the parts of a reduction are contiguous views of one storage, those of a gather are copied out.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Literal, Protocol, TypeVar


class Single(Protocol):
    """A collective of one tensor that a recipe replaces, as its maker knows it."""

    @property
    def op(self) -> str:
        """Its operator, of :data:`overlap_sched.transform.rewrites.BUCKETED`."""

    @property
    def at(self) -> float:
        """The place of its launch."""

    @property
    def place(self) -> float:
        """That of its first wait."""

    @property
    def columns(self) -> int:
        """Its size: for all members of a bucket in the same unit, that of the maker."""


Shape = Literal["flat", "rows", "result"]
"""All in one; a row for each rank; that of the result of the collective that a node is like."""
Value = TypeVar("Value")
Replaced = TypeVar("Replaced", bound=Single, contravariant=True)
One = TypeVar("One", bound=Single)


class Maker(Protocol[Value, Replaced]):
    """Makes nodes of these names at these places; each is ``like`` a collective that is replaced, and made for that."""

    def source(self, one: Replaced) -> Value:
        """The input of a collective."""

    def view(self, name: str, of: Value, shape: Shape, at: float, like: Replaced) -> Value:
        """``view(of, shape)``."""

    def piece(self, name: str, of: Value, dim: int, columns: tuple[int, int], at: float, like: Replaced) -> Value:
        """``slice(of, dim, from, to)``, a view."""

    def copy(self, name: str, of: Value, at: float, like: Replaced, *, result: bool = False) -> Value:
        """``clone(of, contiguous)``; ``result``: its storage is that of the result."""

    def cat(
        self, name: str, of: Sequence[Value], dim: int, at: float, like: Replaced, *, result: bool = False
    ) -> Value:
        """``cat(of, dim)``, a copy; ``result``: its storage is that of the result."""

    def launch(self, name: str, of: Value, members: Sequence[Replaced], at: float, columns: int | None = None) -> Value:
        """The operator of the members on what holds them all, or on so many columns of the only one."""

    def coalesced(self, name: str, members: Sequence[Replaced], at: float) -> Value:
        """One launch of all their inputs, ``<op>_coalesced``."""

    def got(self, name: str, launch: Value, i: int, like: Replaced) -> Value:
        """``getitem(launch, i)``, a view, in the place of its wait."""

    def wait(self, name: str, of: Value, at: float, like: Replaced) -> Value:
        """``wait_tensor(of)``."""


def coalesced(make: Maker[Value, One], name: str, members: Sequence[One]) -> tuple[Value, list[Value]]:
    """Make a bucket that copies nothing: what reads the inputs, and what stands for the waits of each member."""
    launch = make.coalesced(name, members, max(one.at for one in members))
    outs = []
    for i, one in enumerate(members):
        got = make.got(f"{name}_get_{i}", launch, i, one)
        outs.append(make.wait(f"{name}_out_{i}", got, one.place, one))
    return launch, outs


def copied(make: Maker[Value, One], name: str, members: Sequence[One]) -> tuple[Value, list[Value]]:
    """Make a bucket of one buffer: what reads the inputs first, and what stands for the waits of each member."""
    at, place, like = max(one.at for one in members), min(one.place for one in members), members[0]
    gathers, scatters = "gather" in like.op, "scatter" in like.op
    views = [_whole(make, name, f"_{i}", one, at) for i, one in enumerate(members)]
    packed = make.cat(f"{name}_in", views, int(scatters), at, like)
    launch = make.launch(name, packed, members, at)
    done = make.wait(f"{name}_wait", launch, place, like)
    if gathers:
        done = make.view(f"{name}_rows", done, "rows", place, like)
    outs = []
    for i, (one, columns) in enumerate(zip(members, _ranges(one.columns for one in members), strict=True)):
        out = make.piece(f"{name}_part_{i}", done, int(gathers or scatters), columns, one.place, one)
        if gathers:
            out = make.copy(f"{name}_copy_{i}", out, one.place, one, result=True)
        outs.append(make.view(f"{name}_out_{i}", out, "result", one.place, one))
    return packed, outs


def split(make: Maker[Value, One], name: str, one: One, parts: int) -> tuple[Value, Value]:
    """Make several of one, the inverse of a copied bucket: what reads its input first, and what stands for its waits.

    Every rank cuts its shard (of a reduce_scatter: each of its n rows) at the same places, and the results are put
    together again column by column, so that every element is back where it was.
    """
    gathers, scatters = "gather" in one.op, "scatter" in one.op
    whole = _whole(make, name, "", one, one.at)
    results = []
    for p, (begin, end) in enumerate(_ranges(_even(one.columns, parts))):
        part = make.piece(f"{name}_part_{p}", whole, int(scatters), (begin, end), one.at, one)
        if scatters:
            part = make.copy(f"{name}_in_{p}", part, one.at, one)
        launch = make.launch(f"{name}_{p}", part, [one], one.at, end - begin)
        result = make.wait(f"{name}_wait_{p}", launch, one.place, one)
        if gathers:
            result = make.view(f"{name}_rows_{p}", result, "rows", one.place, one)
        results.append(result)
    copy = make.cat(f"{name}_copy", results, int(gathers or scatters), one.place, one, result=True)
    return whole, make.view(f"{name}_out", copy, "result", one.place, one)


def _whole(make: Maker[Value, One], name: str, end: str, one: One, at: float) -> Value:
    """The input of a collective as a row, or as one row for each rank."""
    shape: Shape = "rows" if "scatter" in one.op else "flat"
    return make.view(f"{name}_{shape}{end}", make.source(one), shape, at, one)


def _ranges(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """From and to, one behind the other: ``[2, 3]`` -> ``[(0, 2), (2, 5)]``."""
    return list(pairwise(accumulate(sizes, initial=0)))


def _even(columns: int, parts: int) -> list[int]:
    """As equal parts as can be, the first ones one larger: ``7, 3`` -> ``[3, 2, 2]``."""
    each, more = divmod(columns, parts)
    return [each + (p < more) for p in range(parts)]


def places(at: Sequence[float], waits: Sequence[bool], parts: int) -> list[list[float]]:
    """Per part and node, where it is to stand.

    A stage begins at a wait that follows something else. All of it stands where its first node stood: part by part,
    in the nodes' order, within less than one place.

    Args:
        at: Per node where it stands, ascending.
        waits: Per node whether it is a wait.
        parts: How many.
    """
    starts = [i for i, wait in enumerate(waits) if not i or (wait and not waits[i - 1])]
    result = [[0.0] * len(at) for _ in range(parts)]
    for begin, end in pairwise([*starts, len(at)]):
        size = end - begin
        for p in range(parts):
            for i in range(begin, end):
                result[p][i] = at[begin] + (p * size + i - begin) / (parts * size + 1)
    return result
