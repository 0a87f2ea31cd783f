"""What may be done to the collectives of a graph, as values; nodes are named, so that a problem and a graph agree.

A rewrite has two meanings that must agree: what it makes of a problem (:mod:`overlap_sched.transform.apply`) and what
it makes of an FX graph (:mod:`overlap_sched.fx.rewrites`). Both make the same nodes by the same names, so that an order
of the one is an order of the other: those of ``Bucket`` are listed in
:mod:`overlap_sched.transform.recipes`, those of ``Fission`` in :mod:`overlap_sched.transform.fission`.

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
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overlap_sched.errors import RewriteError
from overlap_sched.transform.fission import Fission, from_data, to_data

Form = Literal["copied", "coalesced"]
"""One buffer, with copies in and out on the compute stream; or one launch of several tensors, without copies."""

BUCKETED = ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor")
"""Operators that can be bucketed."""


@dataclass(frozen=True)
class Bucket:
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


@dataclass(frozen=True)
class Stream:
    """A collective goes to a second communicator of the same ranks; legal for each once. It may be a bucket's name."""

    collective: str


@dataclass(frozen=True)
class Keep:
    """The later gather of the same input is dropped; its users use the first one's result.

    Legal where both gather the same in one group: one node, or casts of one node that are alike
    (:data:`overlap_sched.transform.draft.WHOLE`); and where nothing writes to either result.
    """

    first: str
    again: str


@dataclass(frozen=True)
class Regather:
    """Some users of a gather's result use a fresh gather of the same input, so that the first result dies sooner.

    Legal where the users use a wait of it or one of the views, nothing writes to the result, and the input lives (or is
    an input).

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


@dataclass(frozen=True)
class Recompute:
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


@dataclass(frozen=True)
class Offload:
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

    @property
    def back(self) -> str:
        """The name of the launch back; its wait is ``<back>_wait``."""
        return self.new_name(self.node)

    def new_name(self, node: str) -> str:
        """The name of a view's copy."""
        return f"reload{_number(self.copy)}_{node}"


def _number(copy: int) -> str:
    return "" if copy == 1 else str(copy)


Rewrite = Bucket | Stream | Keep | Regather | Fission | Recompute | Offload
"""They are done in the order in which they are listed; what one makes may be a ``Stream``'s collective."""


def second_group(group: str) -> str:
    """The name of the second communicator of a group's ranks: ``"0"`` -> ``"0/2"``."""
    return f"{group}/2"


def to_json(rewrites: Sequence[Rewrite]) -> list[dict[str, Any]]:
    """Plain data: ``{"kind": "bucket", "members": [...], "form": "copied"}``; the same for all ranks, byte for byte."""
    return [{"kind": type(one).__name__.lower()} | _fields(one) for one in rewrites]


def _fields(one: Rewrite) -> dict[str, Any]:
    if isinstance(one, Fission):
        return to_data(one)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(one).items()}


_CLASSES: Mapping[str, Callable[..., Rewrite]] = {
    "bucket": Bucket,
    "stream": Stream,
    "keep": Keep,
    "regather": Regather,
    "recompute": Recompute,
    "offload": Offload,
}


def from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Rewrite, ...]:
    """The rewrites that :func:`to_json` wrote.

    Raises:
        RewriteError: It did not.
    """
    try:
        return tuple(_read(dict(one)) for one in data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RewriteError(f"rewrites cannot be read: {type(error).__name__}: {error}.") from None


def _read(one: dict[str, Any]) -> Rewrite:
    kind = one.pop("kind")
    if kind == "fission":
        return from_data(one)
    made = _CLASSES[kind]
    return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in one.items()})
