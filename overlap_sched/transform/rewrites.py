"""What may be done to the collectives of a graph, as values; nodes are named, so that a problem and a graph agree.

A rewrite has two meanings that must agree: what it makes of a problem (:mod:`overlap_sched.transform.apply`) and what
it makes of an FX graph (:mod:`overlap_sched.fx.rewrites`). Both make the same nodes by the same names, so that an order
of the one is an order of the other: those of ``Bucket`` are listed in
:mod:`overlap_sched.transform.recipes`.

``Stream`` makes no node: the collective keeps its name and runs in the group :func:`second_group`.
``Keep`` makes none either: ``again`` and its waits are gone, with casts that were made for it alone; users use the
(first) wait of ``first``.
``Regather`` makes ``<r>`` (the same operator on the same input), ``<r>_wait``, and ``<r>_<view>`` of each listed view,
which the listed users use.

``Recompute`` makes ``again_<node>`` of each listed node (``again2_<node>``: a second copy); what takes one of the
others takes its copy. ``Offload`` of ``<node>``, copies by ``torch.ops.ao``::

    offload_<node>        ao.offload(x)                          launch, of x or, of a collective, of its wait
    offload_<node>_wait   ao.wait_tensor(offload, keepalive=x)   wait, behind all users of x that stay
    reload_<node>         ao.reload(offload_wait, device, ...)   launch
    reload_<node>_wait    ao.wait_tensor(reload, offload_wait)   wait
    reload_<view>         each listed view, of what has come back

A second one of the same node has ``offload2_``, ``reload2_``.

``Fission``: a sub-graph runs in n parts along one dimension. ``<f>`` is :attr:`Fission.name`, ``v`` a node, ``p`` a
part, a *run* and a *block* are those of :class:`~overlap_sched.transform.dimension_graph.Cut`::

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
    per leave, same                 nothing

Users outside take the last of these; of a value that is the same in every part, the first part's.

Nodes run stage by stage: a stage begins at a wait, and ends before the next::

    part 0   | wait  mm  launch |                  | wait  mm  launch |
    part 1                      | wait  mm  launch |                  | wait ...
    network     launch of part 1   launch of part 0   launch of part 1
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from overlap_sched.transform.dimension_graph import Cut

Form = Literal["copied", "coalesced"]
"""One buffer, with copies in and out on the compute stream; or one launch of several tensors, without copies."""

GATHER = "all_gather_into_tensor"
BUCKETED = (GATHER, "all_reduce", "reduce_scatter_tensor")
"""Operators that can be bucketed; the first one copies and sums nothing."""


class _Rewrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower):
    """A value that names nodes."""


class Bucket(_Rewrite, frozen=True):
    """Several collectives become one.

    Legal where all members have one operator (of :data:`BUCKETED`), group, type of element and reduction; where none
    needs another, directly or through others, once all earlier rewrites are done; and where nothing but waits uses
    what they return. A member is a collective of the graph, not a bucket: buckets do not nest.

    Attributes:
        members: Collectives by name, two or more, in the order in which they are packed: that of their parameters
            (:mod:`overlap_sched.transform.buckets`).
        form: See :data:`Form`.
    """

    members: tuple[str, ...]
    form: Form = "copied"

    @property
    def name(self) -> str:
        """The name of the launch; those of all other new nodes start with it."""
        return f"bucket_{self.members[0]}_{len(self.members)}"


class Stream(_Rewrite, frozen=True):
    """A collective goes to a second communicator of the same ranks; legal for each once. It may be a bucket's name."""

    collective: str


class Keep(_Rewrite, frozen=True):
    """The later gather of the same input is dropped; its users use the first one's result.

    Legal where both gather the same in one group: one node, or casts of one node that are alike
    (:data:`overlap_sched.transform.apply.WHOLE`); and where nothing writes to either result.
    """

    first: str
    again: str


class Regather(_Rewrite, frozen=True):
    """Some users of a gather's result use a fresh gather of the same input, so that the first result dies sooner.

    Legal where the users use a wait of it or one of the views, nothing writes to the result, and the input is live (or
    is an input).

    Attributes:
        gather: By name.
        users: Who takes what is gathered again, by name: all others keep the first.
        views: Views of it that the users take, each behind those that it looks through: made again.
    """

    gather: str
    users: tuple[str, ...]
    views: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the new launch; its wait is ``<name>_wait``."""
        return f"again_{self.gather}_{self.users[0]}"

    def new_name(self, view: str) -> str:
        """The name of a view's copy."""
        return f"{self.name}_{view}"


class Recompute(_Rewrite, frozen=True):
    """Nodes run again for some of their users, just before the first of these; what they make is new.

    Legal for pure functions: no random numbers, nothing written, no collectives; where nothing writes to what they
    read before they run again.

    Attributes:
        nodes: By name, each behind those of them that it takes. Views of what they make are nodes, too.
        users: Who takes the new ones, by name: all others keep the old.
        copy: Which copy of the nodes this is, from 1 on.
    """

    nodes: tuple[str, ...]
    users: tuple[str, ...]
    copy: int = 1

    def new_name(self, node: str) -> str:
        """The name of a node's copy."""
        return f"again{_number(self.copy)}_{node}"


class Offload(_Rewrite, frozen=True):
    """A value goes to pinned host memory, and comes back for some of its users.

    Legal for nodes that make one storage which is freed at some time; of a collective, its wait's value.

    Attributes:
        node: Who makes it, by name.
        users: Who takes what comes back: all others run before the offload has completed.
        views: Views of it that the users take, each behind those that it looks through: made again.
        copy: Which offload of the node this is, from 1 on.
    """

    node: str
    users: tuple[str, ...]
    views: tuple[str, ...] = ()
    copy: int = 1

    @property
    def name(self) -> str:
        """The name of the launch to the host; its wait is ``<name>_wait``."""
        return f"offload{_number(self.copy)}_{self.node}"

    def new_name(self, node: str) -> str:
        """The name of the launch back, whose wait is ``<it>_wait``; of a view, that of its copy."""
        return f"reload{_number(self.copy)}_{node}"


def _number(copy: int) -> str:
    return "" if copy == 1 else str(copy)


How = Literal["cat", "sum", "same"]


class Slice(msgspec.Struct, frozen=True, array_like=True):
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


class Leave(msgspec.Struct, frozen=True, array_like=True):
    """A value that is used outside.

    Attributes:
        value: The node that gives it; of a collective, its wait.
        how: Parts are put together, or added; or all are the ``same``.
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


class Fission(_Rewrite, frozen=True):
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


Rewrite = Bucket | Stream | Keep | Regather | Fission | Recompute | Offload
"""They are done in the order in which they are listed; what one makes may be a ``Stream``'s collective."""


def second_group(group: str) -> str:
    """The name of the second communicator of a group's ranks: ``"0"`` -> ``"0/2"``."""
    return f"{group}/2"


def to_json(rewrites: Sequence[Rewrite]) -> list[dict[str, Any]]:
    """Plain data: ``{"kind": "bucket", "members": [...], "form": "copied"}``; the same for all ranks, byte for byte."""
    return msgspec.json.decode(msgspec.json.encode(rewrites))
