"""Operators that run another operator, named in their arguments: which one, and what they hand to it."""

from dataclasses import replace
from typing import Any

from torch import fx

from overlap_sched.fx.higher_order import is_higher_order
from overlap_sched.fx.operator_traits import Arg, OperatorTraits
from overlap_sched.fx.operators import traits_of


def unwrapped(node: fx.Node, traits: OperatorTraits) -> tuple[OperatorTraits, tuple[Any, ...], dict[str, Any]]:
    """Traits and arguments of the operator that a node runs, which may be inside a wrapper.

    The ordering constraint is the stronger of both.
    """
    args: tuple[Any, ...] = node.args
    kwargs: dict[str, Any] = node.kwargs
    if not traits.nested:
        return traits, args, kwargs
    if is_higher_order(node.target, "with_effects"):
        inner, args = traits_of(args[1]), args[2:]
    elif is_higher_order(node.target, "auto_functionalized", "auto_functionalized_v2"):
        # functional until torch decides to write in place after all, which shows only in the node's meta
        inner, args = traits_of(args[0]), ()
        if "_all_bases" in kwargs:
            inner = replace(inner, writes=(Arg((-1, "_all_bases")),))
    else:
        return traits, args, kwargs
    return replace(inner, ordering=max(inner.ordering, traits.ordering), nested=True), args, kwargs
