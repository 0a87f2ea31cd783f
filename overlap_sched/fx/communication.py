"""What a node launches, or may: by itself, or in the sub-graphs that it runs, at every depth.

| a node | communicates | on which process groups |
| --- | --- | --- |
| a collective, one that blocks, too | yes | its own |
| an operator of another library that takes a process group, or is declared to | yes | those that it names, or any |
| a sub-graph, a wrapper | as what it runs | those of what it runs |
| another one of another library; a call that is not known; a body that is not at hand | it may | any |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from overlap_sched.fx.collectives import Role, is_undeclared, names_a_group
from overlap_sched.fx.groups import SHARED, group_of, live_ranks, name_and_group
from overlap_sched.fx.operator_traits import arguments_of
from overlap_sched.fx.operators import is_higher_order, traits_of
from overlap_sched.fx.wrappers import bodies_of
from overlap_sched.problem import ANY_GROUP


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
    undeclared = tuple(dict.fromkeys(one for part in parts for one in part.undeclared))
    groups = tuple(dict.fromkeys(name for part in parts for name in part.groups))
    return Communication(groups, tuple(name for part in parts for name in part.kept), undeclared)


class Communications:
    """What the nodes of one graph launch."""

    def __init__(self, graph: fx.Graph) -> None:
        """Read a graph; which groups there are is only looked for where something asks."""
        self._graph = graph
        self._names: frozenset[str] | None = None

    def of(self, node: fx.Node) -> list[Launched]:
        """List what a node launches, in order."""
        if node.op in ("call_module", "call_method"):
            return [Launched(str(node.target), certain=False)]
        if node.op != "call_function":
            return []
        if isinstance(node.target, HigherOrderOperator):
            return list(self._higher_order(node))
        return self._call(node, node.target, node.args, node.kwargs)

    def besides(self, node: fx.Node) -> Communication | None:
        """Return what a node communicates that is no collective on a stream of its own; ``None``: nothing."""
        if node.op == "call_function":
            traits = traits_of(node.target)
            if traits.plain or traits.role in (Role.LAUNCH, Role.WAIT):
                return None
        parts = []
        for one in self.of(node):
            names = tuple(name for name, _ in one.groups) or (ANY_GROUP,)
            undeclared = ((one.undeclared, one.certain),) if one.undeclared else ()
            parts.append(Communication(names if one.certain else (), names, undeclared))
        return joined(parts) if parts else None

    def _higher_order(self, node: fx.Node) -> Iterator[Launched]:
        traits = traits_of(node.target)
        if not traits.known or is_higher_order(node.target, "call_torchbind"):
            yield Launched(traits.op, certain=False)
        called = next((i for i, argument in enumerate(node.args) if isinstance(argument, OpOverload)), None)
        if called is not None:  # what a wrapper calls stands in front of the arguments for that
            yield from self._call(node, node.args[called], node.args[called + 1 :], node.kwargs)
        for body in bodies_of(node):
            if body is None:
                yield Launched(traits.op, certain=False)
            else:
                inside = (one for inner in body.graph.nodes for one in self.of(inner))
                yield from (one._replace(op=f"{traits.op}/{one.op}") for one in inside)

    def _call(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Launched]:
        traits = traits_of(target)
        if traits.role is Role.WAIT:
            return []
        undeclared = target._schema.name if isinstance(target, OpOverload) and is_undeclared(target) else ""
        if traits.comm is not None:
            return [Launched(traits.comm.op, _groups_of_call(node, target, args, kwargs), True, undeclared)]
        if undeclared or not traits.known:
            groups = tuple(self._groups_among([*args, *kwargs.values()]))
            return [Launched(traits.op, groups, bool(groups), undeclared)]
        return []

    def _groups_among(self, arguments: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        """Process groups among the arguments of a call, and the names of such ones."""
        for value in arguments:
            found = group_of(value) if isinstance(value, str | fx.Node) else None
            if found is not None and (found[1] is not None or self._is_a_group(found[0])):
                yield found

    def _is_a_group(self, name: str) -> bool:
        if self._names is None:
            calls = (node for node in self._graph.nodes if node.op == "call_function")
            launches = (node for node in calls if traits_of(node.target).comm is not None)
            self._names = frozenset(name_and_group(node)[0] for node in launches)
        return name in self._names or live_ranks(name) is not None


def communicating(graph: fx.Graph) -> dict[int, Communication]:
    """Per node of a graph that communicates, or may, besides launching collectives (its position): how."""
    communications = Communications(graph)
    found = {v: communications.besides(node) for v, node in enumerate(graph.nodes)}
    return {v: communication for v, communication in found.items() if communication is not None}


def _groups_of_call(
    node: fx.Node, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """The process groups that a collective names; empty: it names none, or one that cannot be found."""
    arguments, given = op._schema.arguments, arguments_of(op, args, kwargs)
    named = [group_of(given.get(a.name)) for a in arguments if names_a_group(a)]
    if not named and (op.namespace in SHARED or any(a.name == "ranks" for a in arguments)):
        return (name_and_group(node),)
    groups = tuple(group for group in named if group is not None)
    return groups if len(groups) == len(named) else ()
