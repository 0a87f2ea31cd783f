"""Operators that run another operator, or a sub-graph: which one, and what they hand to it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from overlap_sched.fx.operator_traits import Arg, OperatorTraits
from overlap_sched.fx.operators import is_higher_order, traits_of
from overlap_sched.fx.reading import attribute_of


class EffectiveCall(NamedTuple):
    """What a node runs in the end.

    Attributes:
        target, args, kwargs: The operator and its arguments, in terms of the graph's own nodes.
        given: Finds the operator's value in that of the node; ``None``: it is not there as it is.
        in_body: Whether it is the one call of a sub-graph.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Callable[[Any], Any] | None
    in_body: bool = False


def call_of(node: fx.Node) -> EffectiveCall:
    """The operator that a node runs, which may be inside a wrapper, and its arguments."""
    if is_higher_order(node.target, "with_effects"):
        return EffectiveCall(node.args[1], node.args[2:], node.kwargs, _behind_token)
    if is_higher_order(node.target, "auto_functionalized", "auto_functionalized_v2"):
        # functional until torch decides to write in place after all, which shows only in the node's meta
        return EffectiveCall(node.args[0], (), node.kwargs, None)
    if is_higher_order(node.target, "control_deps"):
        body = attribute_of(node.args[1]) if isinstance(node.args[1], fx.Node) else None
        if isinstance(body, fx.GraphModule) and (inside := _only_call(body.graph, node.args[2:])) is not None:
            return inside
    return EffectiveCall(node.target, node.args, node.kwargs, _itself)


def _only_call(graph: fx.Graph, args: tuple[Any, ...]) -> EffectiveCall | None:
    """The one call of a sub-graph that is given these arguments; ``None``: it makes several, or none."""
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if len(calls) != 1 or calls[0].op != "call_function":
        return None
    (call,) = calls
    handed = dict(zip(graph.find_nodes(op="placeholder"), args, strict=False))

    def outside(argument: Any) -> Any:
        return fx.node.map_arg(argument, handed.get)

    (result,) = (node.args[0] for node in graph.find_nodes(op="output"))
    if isinstance(result, list | tuple):  # what is handed through stands behind it
        at = next((i for i, one in enumerate(result) if one is call), None)
        return EffectiveCall(
            call.target, outside(call.args), outside(call.kwargs), None if at is None else _nth(at), True
        )
    return EffectiveCall(call.target, outside(call.args), outside(call.kwargs), _itself, True)


def _itself(value: Any) -> Any:
    return value


def _nth(at: int) -> Callable[[Any], Any]:
    return lambda value: value[at] if isinstance(value, list | tuple) and at < len(value) else None


def _behind_token(value: Any) -> Any:
    """``with_effects`` gives a token, then what the operator gives, one by one."""
    behind = value[1:] if isinstance(value, list | tuple) else ()
    return behind[0] if len(behind) == 1 else behind


def unwrapped(node: fx.Node, traits: OperatorTraits) -> tuple[OperatorTraits, EffectiveCall]:
    """Traits and call of the operator that a node runs, which may be inside a wrapper.

    The ordering constraint is the stronger of both.
    """
    call = call_of(node)
    if call.target is node.target:
        return traits, call
    inner = traits_of(call.target)
    if "_all_bases" in call.kwargs:
        inner = replace(inner, writes=(Arg((-1, "_all_bases")),))
    return replace(inner, ordering=max(inner.ordering, traits.ordering), nested=True), call


def order_only(node: fx.Node) -> list[fx.Node]:
    """List what a node takes only in order to come after it."""
    if not is_higher_order(node.target, "control_deps"):
        return []
    looked_at: dict[fx.Node, None] = {}
    fx.node.map_arg(node.args[1:], lambda one: looked_at.setdefault(one))
    return [one for one in node.all_input_nodes if one not in looked_at]


def bodies_of(node: fx.Node) -> Iterator[fx.GraphModule | None]:
    """The sub-graphs that a node runs; ``None`` for each that is not at hand."""
    # what flex attention runs are functions of scores and indices: pure, whether at hand or not
    pure = is_higher_order(node.target, "flex_attention", "flex_attention_backward")
    for one in node.all_input_nodes:
        body = attribute_of(one)
        if isinstance(body, fx.GraphModule):
            yield body
        elif one.op == "get_attr" and (body is None or (isinstance(body, torch.nn.Module) and not pure)):
            yield None
