"""Operators that run another operator, named in their arguments: which one, and what they hand to it."""

from dataclasses import replace
from typing import Any

from torch import fx

from overlap_sched.fx.higher_order import is_higher_order
from overlap_sched.fx.operator_traits import Arg, OperatorTraits
from overlap_sched.fx.operators import traits_of


def call_of(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The operator that a node runs, which may be inside a wrapper, and its arguments."""
    if is_higher_order(node.target, "with_effects"):
        return node.args[1], node.args[2:], node.kwargs
    if is_higher_order(node.target, "auto_functionalized", "auto_functionalized_v2"):
        # functional until torch decides to write in place after all, which shows only in the node's meta
        return node.args[0], (), node.kwargs
    return node.target, node.args, node.kwargs


def unwrapped(node: fx.Node, traits: OperatorTraits) -> tuple[OperatorTraits, tuple[Any, ...], dict[str, Any]]:
    """Traits and arguments of the operator that a node runs, which may be inside a wrapper.

    The ordering constraint is the stronger of both.
    """
    op, args, kwargs = call_of(node) if traits.nested else (node.target, node.args, node.kwargs)
    if op is node.target:
        return traits, args, kwargs
    inner = traits_of(op)
    if "_all_bases" in kwargs:
        inner = replace(inner, writes=(Arg((-1, "_all_bases")),))
    return replace(inner, ordering=max(inner.ordering, traits.ordering), nested=True), args, kwargs
