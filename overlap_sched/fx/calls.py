"""What a node runs (an operator, one inside a wrapper, sub-graphs), on which process groups, what it launches or may.

| a node | communicates | on which process groups |
| --- | --- | --- |
| a collective, one that blocks, too | yes | its own |
| an operator of another library that takes a process group, or is declared to | yes | those that it names, or any |
| a sub-graph, a wrapper | as what it runs | those of what it runs |
| another one of another library; a call that is not known; a body that is not at hand | it may | any |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.distributed import distributed_c10d

from overlap_sched.fx.operators import (
    Arg,
    OperatorTraits,
    Role,
    arguments_of,
    is_higher_order,
    is_undeclared,
    names_a_group,
    traits_of,
)
from overlap_sched.problem import ANY_GROUP
from overlap_sched.transform.prices import OUT


class EffectiveCall(NamedTuple):
    """What a node runs in the end.

    Attributes:
        target, args, kwargs: The operator and its arguments, in terms of the graph's own nodes.
        given: Finds the operator's value in that of the node; gives ``None`` where it is not there as it is.
        in_body: Whether it is the one call of a sub-graph.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: Callable[[Any], Any] = lambda value: value
    in_body: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Its arguments by the names that the operator's schema gives them, but for those left to their defaults."""
        return arguments_of(self.target, self.args, self.kwargs)


def call_of(node: fx.Node) -> EffectiveCall:
    """The operator that a node runs, which may be inside a wrapper, and its arguments."""
    if is_higher_order(node.target, "with_effects"):
        return EffectiveCall(node.args[1], node.args[2:], node.kwargs, _behind_token)
    if is_higher_order(node.target, "auto_functionalized", "auto_functionalized_v2"):
        # functional until torch decides to write in place after all, which shows only in the node's meta
        return EffectiveCall(node.args[0], (), node.kwargs, lambda _: None)
    if is_higher_order(node.target, "control_deps"):
        body = attribute_of(node.args[1]) if isinstance(node.args[1], fx.Node) else None
        if isinstance(body, fx.GraphModule) and (inside := _only_call(body.graph, node.args[2:])) is not None:
            return inside
    return EffectiveCall(node.target, node.args, node.kwargs)


def _behind_token(value: Any) -> Any:
    behind = value[1:] if isinstance(value, list | tuple) else ()
    return behind[0] if len(behind) == 1 else behind


def _only_call(graph: fx.Graph, operands: tuple[Any, ...]) -> EffectiveCall | None:
    """The one call of a sub-graph that is given these arguments; ``None``: it makes several, or none."""
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if [call.op for call in calls] != ["call_function"]:
        return None
    (call,) = calls
    handed = dict(zip(graph.find_nodes(op="placeholder"), operands, strict=False))
    args, kwargs = fx.node.map_arg((call.args, call.kwargs), handed.get)
    (result,) = (node.args[0] for node in graph.find_nodes(op="output"))
    if not isinstance(result, list | tuple):
        return EffectiveCall(call.target, args, kwargs, in_body=True)
    at = next((i for i, one in enumerate(result) if one is call), None)  # what is handed through stands behind it

    def given(value: Any) -> Any:
        return value[at] if at is not None and isinstance(value, list | tuple) and at < len(value) else None

    return EffectiveCall(call.target, args, kwargs, given, True)


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
    looked_at = set[fx.Node]()
    fx.node.map_arg(node.args[1:], looked_at.add)
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


def attribute_of(node: fx.Node) -> Any:
    """Fetch what a ``get_attr`` node names; ``None`` where it cannot be found or the node is of another kind."""
    if node.op != "get_attr" or not isinstance(node.target, str):
        return None
    value: Any = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part, None)
    return value


GROUPS_KEY = "overlap_sched_groups"
"""Key of ``gm.meta`` under which a graph read from a file carries its process groups:
``{name: (size, ranks or None)}``."""
SHARED = {"ao": OUT, "dc": "dc", "deepep": "deepep"}
"""By namespace of operators that name no process group: how theirs is called."""


def name_and_group(node: fx.Node) -> tuple[str, Any]:
    """The name of a collective's group; with the process group itself where the graph carries it.

    Of a copy to or from the host, and of DeepSpeed's collectives, which name none: the one that all of them share.
    """
    shared = SHARED.get(getattr(node.target, "namespace", ""))
    if shared is not None:
        return shared, None
    call = call_of(node)
    given = call.arguments
    named = (given.get(a.name) for a in call.target._schema.arguments if names_a_group(a))
    value = next((value for value in named if value is not None), None)
    if value is None:  # the older collectives list ranks
        ranks = given.get("ranks")
        return (f"{given.get('tag') or ''}:{list(ranks)}" if ranks else str(node.target)), None
    return group_of(value) or ((value if isinstance(value, fx.Node) else node).name, None)


def group_of(value: Any) -> tuple[str, Any] | None:
    """The name of the process group that an argument is, or names; with the group itself where the graph carries it."""
    if isinstance(value, fx.Node):  # torch 2.13: the node that looks the group up in its mesh
        value = value.meta.get("val")
    if isinstance(value, str):
        return value, None
    for candidate in (value, getattr(value, "real_obj", None), getattr(value, "wrapped_obj", None)):
        if isinstance(name := getattr(candidate, "group_name", None), str):
            return name, candidate
    return None


def live_ranks(group: Any) -> list[int] | None:
    """Ranks of a process group of this process, by name or itself; ``None`` where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    resolve: Any = distributed_c10d._resolve_process_group
    try:
        return list(dist.get_process_group_ranks(resolve(group) if isinstance(group, str) else group))
    except Exception:  # torch raises several types for "no such group"
        return None


class Launched(NamedTuple):
    """One thing that a node launches.

    Attributes:
        op: What it is, behind the operators whose sub-graphs it is in: ``"cond/all_reduce"``.
        groups: The names of its process groups, and those themselves where the graph carries them; empty: not known.
        certain: It communicates; ``False``: it may.
        undeclared: Of an operator of another library of which nothing was said, its name: ``"library::operator"``.
    """

    op: str
    groups: tuple[tuple[str, Any], ...] = ()
    certain: bool = True
    undeclared: str = ""


class Communication(NamedTuple):
    """What a node communicates that is no collective on a stream of its own.

    Attributes:
        groups: The process groups on which it does; :data:`~overlap_sched.problem.ANY_GROUP`: one of them, not
            known which. It never passes their launches. Empty: it may communicate.
        kept: Per launch, the group among whose launches it keeps its place where launch orders are kept.
        undeclared: Operators of other libraries of which nothing was said; whether they are taken for communication.
    """

    groups: tuple[str, ...]
    kept: tuple[str, ...]
    undeclared: tuple[tuple[str, bool], ...] = ()


def joined(parts: Sequence[Communication]) -> Communication:
    """Join what several communicate."""
    groups = dict.fromkeys(name for part in parts for name in part.groups)
    undeclared = dict.fromkeys(one for part in parts for one in part.undeclared)
    return Communication(tuple(groups), tuple(name for part in parts for name in part.kept), tuple(undeclared))


def launched_by(node: fx.Node) -> list[Launched]:
    """List what a node launches, in order."""
    if node.op in ("call_module", "call_method"):
        return [Launched(str(node.target), certain=False)]
    if node.op != "call_function":
        return []
    if not isinstance(node.target, HigherOrderOperator):
        return _launched_by_call(node, EffectiveCall(node.target, node.args, node.kwargs))
    traits = traits_of(node.target)
    unknown = Launched(traits.op, certain=False)
    found = [unknown] if not traits.known or is_higher_order(node.target, "call_torchbind") else []
    called = next((i for i, argument in enumerate(node.args) if isinstance(argument, OpOverload)), None)
    if called is not None:  # what a wrapper calls stands in front of the arguments for that
        found += _launched_by_call(node, EffectiveCall(node.args[called], node.args[called + 1 :], node.kwargs))
    for body in bodies_of(node):
        inside = [unknown] if body is None else [one for inner in body.graph.nodes for one in launched_by(inner)]
        found += inside if body is None else [one._replace(op=f"{traits.op}/{one.op}") for one in inside]
    return found


def _launched_by_call(node: fx.Node, call: EffectiveCall) -> list[Launched]:
    traits, op = traits_of(call.target), call.target
    if traits.role is Role.WAIT:
        return []
    undeclared = op._schema.name if isinstance(op, OpOverload) and is_undeclared(op) else ""
    if traits.comm is not None:
        return [Launched(traits.comm.op, _groups_of_call(node, call), True, undeclared)]
    if not undeclared and traits.known:
        return []
    named = [group_of(value) for value in (*call.args, *call.kwargs.values()) if isinstance(value, str | fx.Node)]
    calls = (other for other in node.graph.nodes if other.op == "call_function" and traits_of(other.target).comm)
    known = {name_and_group(other)[0] for other in calls} if any(named) else set()
    groups = tuple(one for one in named if one and (one[1] is not None or one[0] in known or live_ranks(one[0])))
    return [Launched(traits.op, groups, bool(groups), undeclared)]


def communicating(graph: fx.Graph) -> dict[int, Communication]:
    """Per node of a graph that communicates, or may, besides launching collectives (its position): how."""
    found = {}
    for v, node in enumerate(graph.nodes):
        traits = traits_of(node.target) if node.op == "call_function" else None
        if traits is not None and (traits.plain or traits.role in (Role.LAUNCH, Role.WAIT)):
            continue
        parts = []
        for one in launched_by(node):
            names = tuple(name for name, _ in one.groups) or (ANY_GROUP,)
            undeclared = ((one.undeclared, one.certain),) if one.undeclared else ()
            parts.append(Communication(names if one.certain else (), names, undeclared))
        if parts:
            found[v] = joined(parts)
    return found


def _groups_of_call(node: fx.Node, call: EffectiveCall) -> tuple[tuple[str, Any], ...]:
    """The process groups that a collective names; empty: it names none, or one that cannot be found."""
    op, given, arguments = call.target, call.arguments, call.target._schema.arguments
    named = [group_of(given.get(a.name)) for a in arguments if names_a_group(a)]
    if not named and (op.namespace in SHARED or any(a.name == "ranks" for a in arguments)):
        return (name_and_group(node),)
    groups = tuple(group for group in named if group is not None)
    return groups if len(groups) == len(named) else ()
