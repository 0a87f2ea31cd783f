"""The rule of a call: by its operator object, from tables; element by element where torch says that it is pointwise.

DTensor's own sharding strategies say the same of many operators, ``Shard(d)`` in and out and ``Partial`` for sums, but
only for ranges of one dimension, and not what changes in the arguments. They are not asked: rules here are proved by
running the operators.
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.attention import ATTENTION
from overlap_sched.fx.dimensions.call import Call, Rule, Told, checked, is_pure, shape_of_value
from overlap_sched.fx.dimensions.images import IMAGES
from overlap_sched.fx.dimensions.losses import LOSSES
from overlap_sched.fx.dimensions.moves import MOVES, pointwise
from overlap_sched.fx.dimensions.routing import starts, told_of_routed
from overlap_sched.fx.dimensions.storages import functional
from overlap_sched.fx.dimensions.sums import SUMS
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Routed

RULES: Mapping[Any, Rule] = {**MOVES, **SUMS, **IMAGES, **LOSSES, **ATTENTION}


def told(
    node: fx.Node, cuts: Mapping[fx.Node, Cut], parts: int, routed: Mapping[fx.Node, Routed] | None = None
) -> Told:
    """Say what becomes of a call whose inputs are cut, or routed: at least one of them is.

    ``routed``: all values that are routed so far.
    """
    call = Call(node, cuts, parts, routed)
    if call.routed:
        return checked(call, told_of_routed(call))
    if (began := starts(call)) is not None:
        return checked(call, began)
    rule = rule_of(node)
    value = node.meta.get("val")
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, torch.Tensor):
            shape_of_value(one)
    return checked(call, rule(call))


def rule_of(node: fx.Node) -> Rule:
    """The rule of a call."""
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        raise EndsError(f"{node.name!r} is no call of an operator")
    rule = RULES.get(target)
    if rule is not None:
        return rule
    if is_pure(functional(target)) and torch.Tag.pointwise in functional(target).tags:
        return pointwise
    raise EndsError(f"nothing is known of {target}")
