"""What of a graph can run in parts, when some of its values are cut: a graph-level dimension, followed.

Forward: a call with an input that is cut is asked what it makes of it (:mod:`overlap_sched.fx.dimensions.rules`). What
else it then takes in part is sliced, where it comes from outside. Backward: where a sliced value is used by the region
alone, whoever makes it is asked which cut of its own inputs would give that, and joins. Both are repeated until nothing
is added.

In a part, a call that writes to its first argument writes to the part's own. That is as right as the functional
operator of the same name where nobody outside sees the storage: all that reads it runs in parts, too, and in the same
order.
"""

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fx.dimensions.routing import cut_routed_call, starts
from overlap_sched.fx.dimensions.rules import (
    Call,
    CallCut,
    checked,
    end_if,
    functional,
    is_float,
    results,
    rule_of,
    shape,
    shape_of_value,
)
from overlap_sched.fx.operators import Role, traits_of
from overlap_sched.transform.dimension_graph import Cut, EndsError, Given, Routed, Uncut, cuts_of, is_cut_of

_WAIT = torch.ops._c10d_functional.wait_tensor.default


def is_view(node: Any) -> bool:
    """Tell whether a call returns views of what it takes: by its schema; one operator's does not say it."""
    target = getattr(node, "target", None)
    if target is torch.ops.aten._unsafe_view.default:
        return True
    return isinstance(target, OpOverload) and any(one.alias_info is not None for one in target._schema.returns)


def maker_of(node: Any) -> tuple[fx.Node, int]:
    """Who allocates a value, and which of its allocations it is: behind views, waits and ``getitem``."""
    while True:
        source: Any = node.args[0] if node.op == "call_function" and node.args else None
        if is_view(node) or (node.target is operator.getitem and is_view(source)):
            node = source
        elif node.target is operator.getitem:
            return source, sum(isinstance(value, torch.Tensor) for value in source.meta["val"][: node.args[1]])
        else:
            return (source if node.target is _WAIT else node), 0


def writes(node: fx.Node) -> bool:
    """Tell whether a call writes to its first argument."""
    return functional(node.target) is not node.target


def with_results(node: fx.Node) -> list[fx.Node]:
    """A call, and each of its results where it has several."""
    return [node, *(user for user in node.users if user.target is operator.getitem)]


def _takers(maker: fx.Node, result: int | None = None) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Who takes what a call has made, or what looks at that: pairs of what is taken, and who does.

    ``result``: which of its allocations; ``None``: all.
    """
    todo, seen = [maker], {maker}
    while todo:
        one = todo.pop()
        for user in one.users:
            if user.target is operator.getitem and one is maker and result not in (None, maker_of(user)[1]):
                continue
            yield one, user
            if user not in seen and (is_view(user) or user.target in (operator.getitem, _WAIT)):
                seen.add(user)
                todo.append(user)


@dataclass
class Region:
    """Calls that run in parts.

    Attributes:
        parts: How many.
        seeds: Values from outside that were asked for.
        gives: Per call of the region, in the graph's order, how its result is cut: a tuple, of several.
        calls: Per call, but for ``getitem``, what its rule says.
        slices: Values from outside that are taken in part, and how they are cut; seeds among them.
        whole: Values from outside that every part takes whole.
        ends: Per call that takes a cut value whole, why.
        routed: Values of the region of which each part has its own.
    """

    parts: int
    seeds: Mapping[fx.Node, Cut]
    gives: dict[fx.Node, Given | tuple[Given, ...]] = field(default_factory=dict)
    calls: dict[fx.Node, CallCut] = field(default_factory=dict)
    slices: dict[fx.Node, Cut] = field(default_factory=dict)
    whole: set[fx.Node] = field(default_factory=set)
    ends: dict[fx.Node, str] = field(default_factory=dict)
    routed: dict[fx.Node, Routed] = field(default_factory=dict)

    def cut(self, node: fx.Node) -> Cut | None:
        """How a value is cut, in the region or where it is sliced; ``None``: it is not, or otherwise."""
        given = self.gives[node] if node in self.gives else self.slices.get(node, self.seeds.get(node))
        return given if isinstance(given, Cut) else None


def region_from(
    graph: fx.Graph,
    seeds: Mapping[fx.Node, Cut],
    parts: int,
    *,
    only: Collection[fx.Node] | None = None,
    never: Collection[fx.Node] = (),
    sums: bool = False,
) -> Region:
    """The region that grows from some values.

    Args:
        graph: With ``meta["val"]``; of functional operators.
        seeds: Values that are cut; they stay outside.
        parts: How many.
        only: Calls that may be in it; ``None``: all.
        never: Calls that may not.
        sums: Whether a call may be in it whose parts must be added. (Sums are then rounded otherwise.)
    """
    banned, asked = set(never), dict(seeds)

    def may(node: fx.Node) -> bool:
        return node not in banned and (only is None or node in only)

    while True:
        region = follow_cuts(graph.nodes, asked, parts, may=may, sums=sums)
        lost = _not_whole(region)
        more = {} if lost else _backward(region, may)
        if not lost and more.keys() <= asked.keys():
            return region
        banned |= lost
        asked |= more


def follow_cuts(
    nodes: Iterable[fx.Node],
    seeds: Mapping[fx.Node, Cut],
    parts: int,
    *,
    may: Callable[[fx.Node], bool] = lambda node: True,
    sums: bool = True,
) -> Region:
    """Follow what becomes of some calls where values from outside are cut; what leaves in parts is not looked at.

    ``nodes`` are in an order in which they can run; ``may``: which of them may run in parts.
    """
    region = Region(parts, seeds)
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.args[0] in region.calls:
            gives = region.gives[node.args[0]]
            assert isinstance(gives, tuple)
            _gives(region, node, gives[node.args[1]])
            continue
        cuts = {u: cut for u in node.all_input_nodes if (cut := region.cut(u)) is not None}
        if not cuts and not any(u in region.routed for u in node.all_input_nodes):
            continue
        try:
            end_if(not may(node), "it is not to run in parts")
            said = cut_call(node, cuts, parts, region.routed)
            _check(region, node, said, sums)
        except EndsError as error:
            region.ends[node] = str(error)
            continue
        region.calls[node] = said
        _gives(region, node, said.gives)
        for u in node.all_input_nodes:
            if u not in region.gives and u in said.needs:
                region.slices[u] = said.needs[u]
            elif u not in region.gives:
                region.whole.add(u)
    return region


def _gives(region: Region, node: fx.Node, gives: Given | tuple[Given, ...]) -> None:
    """Note what a call gives. Whole numbers that parts would add up to are a part's own inside."""
    region.gives[node] = gives
    if isinstance(gives, Routed):
        region.routed[node] = gives
    elif gives is Uncut.PARTIAL and _counts(node):
        region.routed[node] = Routed(None)


def _counts(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and not is_float(node)


def _check(region: Region, node: fx.Node, said: CallCut, sums: bool) -> None:
    """Check that what a rule says fits the region."""
    end_if(Uncut.PARTIAL in results(said.gives) and not sums and not _counts(node), "its parts would have to be added")
    if writes(node) and (not isinstance(node.args[0], fx.Node) or node.args[0] not in region.gives):
        raise EndsError("it writes to what is not made in a part")
    if isinstance(said.gives, tuple) and any(u.target is not operator.getitem for u in node.users):
        raise EndsError("all of its results are taken together")
    for u in node.all_input_nodes:
        inside = None if u in said.idle else region.gives.get(u)
        partial = inside is Uncut.PARTIAL and u not in region.routed
        end_if(partial or (u in said.needs and inside is Uncut.SAME), f"{u.name!r} is not cut")
        if u in said.needs and inside is None and (u in region.whole or _role(u) is Role.LAUNCH):
            raise EndsError(f"{u.name!r} is taken whole by another one, or is still in flight")


def _role(node: fx.Node) -> Role | None:
    return traits_of(node.target).role if node.op == "call_function" else None


def _not_whole(region: Region) -> set[fx.Node]:
    """Calls of the region that cannot run in parts after all.

    Launches and waits whose other half is not in it; what is used outside, and cannot leave; and what shares with
    others what is written to: each part would have one of its own.
    """
    lost, inside = set(), region.gives
    for node in region.calls:
        role = _role(node)
        waits = [user for user in node.users if _role(user) is Role.WAIT]
        alone = role is Role.LAUNCH and (not waits or any(wait not in region.calls for wait in waits))
        alone |= role is Role.WAIT and node.args[0] not in region.calls
        routed = (one for one in with_results(node) if isinstance(inside.get(one), Routed))
        seen = any(user not in inside for one in routed for user in one.users)
        maker, result = maker_of(node)
        shared = writes(node) and (maker not in inside or any(u not in inside for _, u in _takers(maker, result)))
        written = any(u not in inside and writes(u) and u.args[0] is one for one, u in _takers(node))
        if alone or seen or shared or written:
            lost.add(node)
    return lost


def _backward(region: Region, may: Callable[[fx.Node], bool]) -> dict[fx.Node, Cut]:
    """Cuts of further values from which what is sliced now would come in parts."""
    found: dict[fx.Node, Cut] = {}
    todo = {node: cut for node, cut in region.slices.items() if _can_join(region, node, {})}
    while todo:
        node, cut = todo.popitem()
        for u, needed in inverse(node, cut, region.parts).items() if may(node) else ():
            if u in region.gives or u in region.slices or u in region.whole or u in found:
                continue
            found[u] = needed
            if _can_join(region, u, found):
                todo[u] = needed
    return found


def _can_join(region: Region, node: fx.Node, found: Mapping[fx.Node, Cut]) -> bool:
    """Tell whether a value is made by a call that nobody else needs whole."""
    return node.op == "call_function" and all(user in region.gives or user in found for user in node.users)


def inverse(node: fx.Node, wanted: Cut, parts: int) -> Mapping[fx.Node, Cut]:
    """The cuts of its inputs with which a call gives what is wanted; empty: none found, or nothing is known of it."""
    at: Any = 0
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node, at = node.args[0], node.args[1]
    try:
        rule_of(node)
    except EndsError:
        return {}
    for u in node.all_input_nodes:
        try:
            sizes = shape(u)
        except EndsError:
            continue
        likely = [cut for dim in range(len(sizes)) if is_cut_of(cut := wanted.moved(dim), sizes, parts)]
        for cut in dict.fromkeys((*likely, *cuts_of(sizes, parts))):
            with contextlib.suppress(EndsError):
                said = cut_call(node, {u: cut}, parts)
                if results(said.gives)[at] == wanted:
                    return said.needs
    return {}


def cut_call(
    node: fx.Node, cuts: Mapping[fx.Node, Cut], parts: int, routed: Mapping[fx.Node, Routed] | None = None
) -> CallCut:
    """Say what becomes of a call whose inputs are cut, or routed: at least one of them is.

    ``routed``: all values that are routed so far.
    """
    call = Call(node, cuts, parts, routed)
    if call.routed:
        return checked(call, cut_routed_call(call))
    if (began := starts(call)) is not None:
        return checked(call, began)
    rule = rule_of(node)
    for one in results(node.meta.get("val")):
        if isinstance(one, torch.Tensor):
            shape_of_value(one)
    return checked(call, rule(call))
