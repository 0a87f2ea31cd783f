"""A collective of an FX graph that can be rewritten: what it does, and why it must be left alone where it must."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.errors import RewriteError
from overlap_sched.fx.calls import name_and_group
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.transform.rewrites import BUCKETED

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten
WAIT = C10D.wait_tensor.default
GETITEM = operator.getitem
LAUNCHES: dict[Any, str] = {getattr(C10D, op).default: op for op in BUCKETED}
ALIGNMENT = 16
"""Bytes: kernels read vectors of up to so many, and libraries pick another kernel where a tensor starts elsewhere."""


class Site(NamedTuple):
    """A functional collective of one tensor, which nothing but waits uses.

    Attributes:
        node: The launch. op: its operator, of :data:`~overlap_sched.transform.rewrites.BUCKETED`.
        source: What it takes: a contiguous tensor of known size.
        group: Its argument, a name mostly. group_name: the name.
        reduction: ``"sum"``; ``""`` of a gather.
        ranks: Of its group; ``None`` of an all_reduce whose group is not known.
        waits: All of them, in order. at, place: where it is launched, and where it is first waited for.
    """

    node: fx.Node
    op: str
    source: fx.Node
    group: Any
    group_name: str
    reduction: str
    ranks: int | None
    waits: tuple[fx.Node, ...]
    at: float
    place: float

    @property
    def columns(self) -> int:
        """Its elements per rank."""
        return (self.given if self.op == "reduce_scatter_tensor" else self.taken).numel()

    @property
    def taken(self) -> FakeTensor:
        """The value of what it takes."""
        value: FakeTensor = self.source.meta["val"]
        return value

    @property
    def given(self) -> FakeTensor:
        """The value of what it gives."""
        value: FakeTensor = self.waits[0].meta["val"]
        return value

    @property
    def rest(self) -> tuple[Any, ...]:
        """Its arguments behind the tensor."""
        return arguments(self.node)[1:]

    @property
    def kind(self) -> str:
        """The properties that members of a bucket share besides operator and group: ``"float32 sum"``."""
        where = "" if self.taken.device.type in ("cpu", "cuda") else f" on {self.taken.device.type}"
        return f"{str(self.taken.dtype).removeprefix('torch.')} {self.reduction}".rstrip() + where


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call in the order of its schema, however they are given; those left out are not there."""
    behind = [argument.name for argument in node.target._schema.arguments[len(node.args) :]]
    return (*node.args, *(node.kwargs[name] for name in behind if name in node.kwargs))


def site(draft: GraphDraft, name: str) -> Site:
    """The collective of this name, where it can be rewritten."""
    node = draft.find(name)
    op = LAUNCHES.get(node.target)
    args = arguments(node) if op is not None else ()
    if op is None or len(args) != len(node.target._schema.arguments):
        raise RewriteError(f"{name!r} is {_target(node)!r}: what can be rewritten is {', '.join(BUCKETED)}.")
    waits = _waits(draft, node)
    source = args[0]
    assert isinstance(source, fx.Node)
    group_name, _ = name_and_group(node)
    _check_values(name, source, waits)
    if draft.facts.written(waits[0]):
        raise RewriteError(f"something writes to the result of {name!r}: it must stay a tensor of its own.")
    if draft.facts.sends(group_name):
        raise RewriteError(f"process group {group_name!r} of {name!r} also sends or receives: its order must stay.")
    gathers = op == "all_gather_into_tensor"
    reduction = "" if gathers else str(args[1])
    ranks = draft.facts.ranks(group_name) if op == "all_reduce" else int(args[1 if gathers else 2])
    places = draft.at[node], draft.at[waits[0]]
    return Site(node, op, source, args[-1], group_name, reduction, ranks, waits, *places)


def _waits(draft: GraphDraft, node: fx.Node) -> tuple[fx.Node, ...]:
    users = draft.users(node)
    waits = tuple(user for user in users if user.target is WAIT)
    others = [user for user in users if user.target is not WAIT]
    if others:
        raise RewriteError(
            f"{others[0].name!r} needs the launch of {node.name!r} itself, not its wait: a rewrite would lose that."
        )
    if not waits:
        raise RewriteError(f"{node.name!r} has 0 waits: it needs one.")
    return tuple(sorted(waits, key=draft.at.__getitem__))


def _check_values(name: str, source: fx.Node, waits: tuple[fx.Node, ...]) -> None:
    for what, node in (("input", source), ("result", waits[0])):
        value = known_value(f"the {what} of {name!r}", node)
        if not value.is_contiguous():
            raise RewriteError(f"the {what} of {name!r} is not contiguous, its strides are {tuple(value.stride())}.")
        if not value.numel():
            raise RewriteError(f"the {what} of {name!r} is empty.")


def known_value(what: str, node: fx.Node) -> FakeTensor:
    """The value of a node, where it is one tensor of known sizes; ``what`` it is called in messages."""
    value = node.meta.get("val")
    if type(value) is not FakeTensor:
        raise RewriteError(f"{what} is no fake tensor: its shape is not known.")
    if not all(type(size) is int for size in value.shape):
        raise RewriteError(f"{what} has a symbolic shape, {tuple(value.shape)}.")
    return value


def check_offsets(draft: GraphDraft, members: Sequence[Site]) -> None:
    """Check that results that become parts of one storage are not looked at by address, and start at round ones."""
    if members[0].op == "all_gather_into_tensor":  # those are copied out
        return
    for one in members:
        name, nbytes = one.node.name, one.given.numel() * one.given.dtype.itemsize
        if draft.facts.by_address(one.waits[0]):
            raise RewriteError(f"the result of {name!r} is looked at by its address: it must stay a tensor of its own.")
        if nbytes % ALIGNMENT:
            raise RewriteError(
                f"the result of {name!r} has {nbytes} bytes, no multiple of {ALIGNMENT}: packed, the next one would "
                "start where kernels do not expect it."
            )


def check_same_value(name: str, old: fx.Node, new: fx.Node) -> None:
    """Check that a result is what it was: shape, type, device, and strides where there is more than one step."""
    was, now = layout(old.meta["val"]), layout(new.meta["val"])
    if was != now:
        raise RewriteError(f"the result of {name!r} would be {now} and was {was}.")


def layout(value: torch.Tensor) -> tuple[Any, ...]:
    """Return the layout of a tensor, but for the strides of dimensions of size 1, which mean nothing."""
    strides = tuple(stride if size > 1 else 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    return tuple(value.shape), strides, value.dtype, value.device


def _target(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else node.op
