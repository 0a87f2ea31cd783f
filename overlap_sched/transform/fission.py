"""A sub-graph runs in n parts along one dimension, as a value; nodes are named, so that a problem and a graph agree.

``<f>`` is :attr:`Fission.name`, ``v`` a node, ``p`` a part, a *run* and a *block* are those of
:class:`~overlap_sched.transform.dimension_graph.cut.Cut`::

    per node        <f>_<v>_p       the node, in each part
    per slice       free            <f>_<v>_in_p    slice(v)                    view
                    else, one run   <f>_<v>_slice_p slice(v)                    view
                                    <f>_<v>_in_p    clone(slice_p)              copy
                    else            <f>_<v>_runs    view(v, [.., runs, rows])   view
                                    <f>_<v>_slice_p slice(runs)                 view
                                    <f>_<v>_copy_p  clone(slice_p)              copy
                                    <f>_<v>_in_p    view(copy_p)                view
    per leave, cat  laid out else   <f>_<v>_laid_p  permute(v_p, order)         view
                    several runs    <f>_<v>_runs_p  view([.., runs, rows])      view
                    always          <f>_<v>_cat     cat([...])                  copy
                    several runs    <f>_<v>_whole   view(cat, [.., rows])       view
                    laid out else   <f>_<v>_back    permute(.., back)           view
    per leave, sum                  <f>_<v>_sum_p   add(sum_(p-1), v_p)         kernel
    per leave, same or parts        nothing

Users outside take the last of these; of a value that is the same in every part, the first part's. A value that leaves
in ``parts`` goes to the output of the graph alone, which then returns a tuple of the parts in its place.

Nodes run stage by stage: a stage begins at a wait, and ends before the next::

    part 0   | wait  mm  launch |                  | wait  mm  launch |
    part 1                      | wait  mm  launch |                  | wait ...
    network     launch of part 1   launch of part 0   launch of part 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from overlap_sched.transform.dimension_graph.cut import Cut

How = Literal["cat", "sum", "same", "parts"]


@dataclass(frozen=True)
class Slice:
    """A value from outside that each part takes in part. What is listed nowhere goes whole to every part: weights.

    Attributes:
        value: The node that gives it.
        cut: How it is cut.
        bytes: Of all of it.
        free: A part is a view: a range of a contiguous tensor. Else it is copied.
        maker: The node that allocates it: itself, or what stands behind views, waits and ``getitem``.
        result: Which of the maker's allocations it is.
    """

    value: str
    cut: Cut
    bytes: int
    free: bool
    maker: str
    result: int = 0


@dataclass(frozen=True)
class Leave:
    """A value that is used outside.

    Attributes:
        value: The node that gives it; of a collective, its wait.
        how: Parts are put together, or added; or all are the ``same``; or the graph's output takes the ``parts``.
        cut: How it is cut; of a sum and of what is the same it means nothing.
        bytes: Of all of it.
        maker, result: As of :class:`Slice`.
        order: Its dimensions as they lie in memory, outermost first; empty: as they are listed.
    """

    value: str
    how: How
    cut: Cut
    bytes: int
    maker: str
    result: int = 0
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fission:
    """Nodes run in parts.

    Legal where the graph has no other users of the nodes than those that ``leaves`` and ``views`` provide for, and
    where each of the nodes can be cut so (:mod:`overlap_sched.fx.dimensions`; of a problem that is taken as true).

    Attributes:
        nodes: Those that run in parts, in their original order.
        parts: How many.
        slices: What enters in part.
        leaves: What is used outside.
        views: Nodes that also stay, whole: views of what leaves.
        full: Allocations that are as large in every part as in the whole: (node, which of its allocations).
    """

    nodes: tuple[str, ...]
    parts: int
    slices: tuple[Slice, ...] = ()
    leaves: tuple[Leave, ...] = ()
    views: tuple[str, ...] = ()
    full: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The prefix of the names of all new nodes."""
        return f"fission_{self.nodes[0]}_{self.parts}"

    def part(self, node: str, p: int) -> str:
        """The name of a node in a part."""
        return f"{self.name}_{node}_{p}"

    @property
    def exact(self) -> bool:
        """Tell whether no sum is split: each element comes of the same operations on the same elements.

        Bitwise, then, but for libraries that pick another kernel for a smaller product.
        """
        return all(leave.how != "sum" for leave in self.leaves)


def to_data(one: Fission) -> dict[str, Any]:
    """Plain data: lists, numbers and text."""
    return {
        "nodes": list(one.nodes),
        "parts": one.parts,
        "slices": [[s.value, _of_cut(s.cut), s.bytes, s.free, s.maker, s.result] for s in one.slices],
        "leaves": [[v.value, v.how, _of_cut(v.cut), v.bytes, v.maker, v.result, list(v.order)] for v in one.leaves],
        "views": list(one.views),
        "full": [list(pair) for pair in one.full],
    }


def from_data(data: Mapping[str, Any]) -> Fission:
    """Read what :func:`to_data` wrote."""
    if set(data) != {"nodes", "parts", "slices", "leaves", "views", "full"}:
        raise ValueError(f"a fission has nodes, parts, slices, leaves, views and full, not {sorted(data)}")
    return Fission(
        tuple(data["nodes"]),
        data["parts"],
        tuple(
            Slice(value, Cut(*cut), nbytes, free, maker, result)
            for value, cut, nbytes, free, maker, result in data["slices"]
        ),
        tuple(
            Leave(value, how, Cut(*cut), nbytes, maker, result, tuple(order))
            for value, how, cut, nbytes, maker, result, order in data["leaves"]
        ),
        tuple(data["views"]),
        tuple((node, result) for node, result in data["full"]),
    )


def _of_cut(cut: Cut) -> list[int]:
    return [cut.dim, cut.outer, cut.inner]
