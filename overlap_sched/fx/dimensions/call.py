"""One call of an operator, as the rules see it; and what a rule says of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Given, Routed, Shape, Uncut, is_cut_of


class Told(NamedTuple):
    """What a rule says: the whole result is what the parts give, put together as ``gives`` says.

    Attributes:
        needs: Per input that each part takes in part, its cut. Other inputs go whole to every part.
        gives: Of the result, or a tuple with one for each of several results.
        changes: Arguments that are others for a part, by name: sizes, mostly.
        idle: Inputs that it takes and does not look at: they may be anything.
    """

    needs: Mapping[fx.Node, Cut]
    gives: Given | tuple[Given, ...]
    changes: Mapping[str, Any] = {}
    idle: tuple[fx.Node, ...] = ()


class Call:
    """A call with some inputs cut. What asks it for something that it is not gets an :class:`EndsError`.

    Attributes:
        node: The call.
        parts: Into how many.
        cuts: Of its inputs that are cut.
        routed: Its inputs that are routed.
        known: All values that are routed so far.
    """

    def __init__(
        self, node: fx.Node, cuts: Mapping[fx.Node, Cut], parts: int, known: Mapping[fx.Node, Routed] | None = None
    ) -> None:
        self.node, self.cuts, self.parts = node, cuts, parts
        self.known: Mapping[fx.Node, Routed] = known or {}
        self.routed = {u: self.known[u] for u in node.all_input_nodes if u in self.known}

    def arg(self, name: str) -> Any:
        """An argument by the name that the schema gives it, or its default."""
        schema = self.node.target._schema
        for at, argument in enumerate(schema.arguments):
            if argument.name == name:
                if at < len(self.node.args):
                    return self.node.args[at]
                return self.node.kwargs.get(name, argument.default_value)
        raise EndsError(f"{self.node.target} has no argument {name!r}")

    def given(self, name: str) -> fx.Node:
        """An argument that must be a tensor."""
        value = self.arg(name)
        if not isinstance(value, fx.Node):
            raise EndsError(f"argument {name!r} is {value!r} and no tensor")
        return value

    def first(self) -> tuple[fx.Node, Cut]:
        """The first input that is cut."""
        return next(iter(self.cuts.items()))

    def cut(self, name: str) -> Cut:
        """The cut of a tensor argument, which must be cut."""
        cut = self.cuts.get(self.given(name))
        if cut is None:
            raise EndsError(f"argument {name!r} is whole while another one is cut")
        return cut

    def result(self, at: int | None = None) -> Shape:
        """The shape of what it gives, or of one of several."""
        value = self.node.meta["val"]
        return shape_of_value(value if at is None else value[at])


Rule = Callable[[Call], Told]
"""What the parts of a call are, or an :class:`EndsError`: why the dimension ends there."""


def shape_of_value(value: Any) -> Shape:
    """The shape of a tensor, if it is one and its shape does not depend on data."""
    if not isinstance(value, torch.Tensor):
        raise EndsError("no tensor")
    if not all(type(size) is int for size in value.shape):
        raise EndsError(f"the shape {tuple(value.shape)} is not of plain numbers")
    return tuple(value.shape)


def shape(node: fx.Node) -> Shape:
    """The shape of what a node gives."""
    return shape_of_value(node.meta.get("val"))


def checked(call: Call, told: Told) -> Told:
    """Return what a rule said, if it fits the call: whatever is cut is taken as it is cut, and all shapes divide."""
    for node, cut in call.cuts.items():
        if told.needs.get(node) != cut:
            raise EndsError(f"it takes {node.name!r} whole, or cut otherwise than it is")
    for node, cut in told.needs.items():
        if not is_cut_of(cut, shape(node), call.parts):
            raise EndsError(f"{node.name!r} of shape {shape(node)} cannot be cut as {cut}")
    value = call.node.meta["val"]
    several = isinstance(told.gives, tuple)
    for at, given in enumerate(told.gives if isinstance(told.gives, tuple) else (told.gives,)):
        if isinstance(given, Cut) and not is_cut_of(given, shape_of_value(value[at] if several else value), call.parts):
            raise EndsError(f"its result cannot be cut as {given}")
    return told


def is_pure(target: Any) -> bool:
    """Tell whether an operator only computes: writes nothing, and draws no random numbers that depend on shapes."""
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def not_cut(call: Call) -> None:
    """Refuse what is cut beside what is routed."""
    if call.cuts:
        raise EndsError("it takes what is cut together with what is routed")


def is_float(node: fx.Node) -> bool:
    """Tell whether a value is a tensor of floats."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def reckoned(*operands: Routed) -> bool:
    """Tell whether something has been computed from numbers that name rows: nobody knows what the result names."""
    return any(one.reckoned or one.of is not None for one in operands)


def summed(wanted: Sequence[bool]) -> tuple[Uncut, ...]:
    """Gradients of weights and biases, where they are asked for: sums over the batch."""
    return tuple(Uncut.PARTIAL if one else Uncut.SAME for one in wanted)
