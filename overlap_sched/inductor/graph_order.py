"""What must stand as in the FX graph that Inductor lowers, where torch reorders it: effects and launches."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from torch import fx
from torch._inductor import ir
from torch._inductor.utils import is_collective, is_wait
from torch._inductor.virtualized import V

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.calls import Communications
from overlap_sched.fx.operators import Ordering, is_higher_order, traits_of
from overlap_sched.inductor.agree import Traffic, waits
from overlap_sched.inductor.private import members, runs
from overlap_sched.inductor.reporting import warn


def kernel_traffic(snodes: Sequence[Any]) -> Traffic | None:
    """That of Inductor's scheduler nodes: the FX nodes that their launches came from, their waits by name.

    ``None``: a launch comes from no single FX node.
    """
    known = Communications(V.graph.graph)
    found, before = list[fx.Node](), dict[str, int]()
    for member in (one for snode in snodes for one in members(snode)):
        launches = _launches_of(member, known)
        if launches is None:
            return None
        if is_wait(member.node) or (runs(member) and any(map(waits, getattr(member.node, "origins", ()) or ()))):
            before[member.get_name()] = len(found)
        found += launches
    return Traffic(tuple(found), before)


def launch_places(snodes: Sequence[Any], launches: Sequence[fx.Node]) -> dict[str, int]:
    """Per scheduler node that launches, by name, its place among some launches."""
    known, place = Communications(V.graph.graph), {node: k for k, node in enumerate(launches)}
    found = ((snode.get_name(), _launches_of(snode, known) or ()) for snode in snodes)
    return {name: min(place[node] for node in nodes) for name, nodes in found if nodes and set(nodes) <= place.keys()}


def _launches_of(snode: Any, known: Communications) -> list[fx.Node] | None:
    """Those of one scheduler node; ``None``: one of them comes from no single FX node."""
    found: list[fx.Node] = []
    for member in members(snode):
        if not runs(member):
            continue
        origins = [node for node in getattr(member.node, "origins", ()) or () if known.of(node)]
        if len(origins) > 1 or (is_collective(member.node) and not origins):
            return None
        found += origins
    return found


def in_graph_order(snodes: Sequence[Any]) -> list[Any]:
    """The nodes with all that launches, or may, in the order of the FX graph, each else as near to its place as can be.

    Inductor keeps collectives in the order of the graph, but it does not know what communicates inside an operator, and
    moves that past them, for memory. On ranks with equal graphs it does so alike; where graphs differ, it may not. So
    ranks that keep their launches keep those of the FX graph that Inductor lowers.

    As they were where that is their order, where it is not known what they launch, or where their dependencies do not
    allow another order. Torch's dependencies are kept, and the order of what has effects or draws random numbers.
    """
    graph = V.graph.graph
    known, place = Communications(graph), {node: at for at, node in enumerate(graph.nodes)}
    launches = [_launches_of(snode, known) for snode in snodes]
    if None in launches:
        return list(snodes)
    first = {at: min(place[node] for node in nodes) for at, nodes in enumerate(launches) if nodes}
    wanted = sorted(first, key=lambda at: first[at])
    if wanted == sorted(wanted):
        return list(snodes)
    apart = [at for at, snode in enumerate(snodes) if at not in first and _impure(snode)]
    order = _nearest(snodes, (*pairwise(wanted), *pairwise(apart)))
    return list(snodes) if order is None else [snodes[at] for at in order]


def _impure(snode: Any) -> bool:
    """Tell whether a node runs an operator that has effects or draws random numbers, or may."""
    if snode.has_side_effects():
        return True
    running = (member for member in members(snode) if runs(member))
    origins = (node for member in running for node in getattr(member.node, "origins", ()) or ())
    return any(n.op == "call_function" and traits_of(n.target).ordering is not Ordering.NONE for n in origins)


def in_order_of_effects(snodes: list[Any]) -> list[Any]:
    """The nodes; where some stand against the order of effects, as near to their order as keeps that.

    What the FX graph chains by tokens (``with_effects``) must run in that order. torch 2.13 chains effects among
    kernels that it calls as they are, and collectives among themselves; of a collective and another kernel either may
    come first (https://github.com/pytorch/pytorch/issues/188301). A send and its receive may then meet the wrong
    partner.

    Args:
        snodes: In an order that keeps torch's dependencies.

    Raises:
        UnsupportedError: torch's dependencies are against the order of effects.
    """
    chain = _chain(snodes)
    if all(before < at for before, at in pairwise(chain)):
        return snodes
    order = _nearest(snodes, pairwise(chain))
    if order is None:
        first, then = next((u, w) for u, w in pairwise(chain) if w < u)
        raise UnsupportedError(
            f"{snodes[then].get_name()!r} runs before {snodes[first].get_name()!r}, whose effects come before its own, "
            "and other kernels in between keep them so."
        )
    warn("torch's scheduler runs operators against the order of their effects: overlap_sched has put them in order")
    return [snodes[at] for at in order]


def _chain(snodes: Sequence[Any]) -> list[int]:
    """Positions of the nodes that have effects, in the order that the FX graph gives to those."""
    effects = [node for node in V.graph.graph.nodes if is_higher_order(node.target, "with_effects")]
    if not effects:
        return []
    number = {node: k for k, node in enumerate(effects)}
    found: list[tuple[int, int]] = []
    for at, snode in enumerate(snodes):
        for member in members(snode):
            if member.node is None or not member.is_extern() or isinstance(member.node, ir.MultiOutput):
                continue
            found += [(number[node], at) for node in member.node.origins or () if node in number]
    return list(dict.fromkeys(at for _, at in sorted(found)))


def _nearest(snodes: Sequence[Any], pairs: Iterable[tuple[int, int]]) -> list[int] | None:
    """Positions in the nearest order that keeps torch's dependencies and some pairs: always the smallest that may come.

    The nodes are in an order that keeps the dependencies; a pair of positions says which comes first. ``None``: the
    pairs are against the dependencies.
    """
    producer = {name: at for at, snode in enumerate(snodes) for name in snode.get_buffer_names()}
    before = [{producer.get(dep.name, at) for dep in snode.unmet_dependencies} for at, snode in enumerate(snodes)]
    for first, then in pairs:
        before[then].add(first)
    after: list[list[int]] = [[] for _ in snodes]
    left = [0] * len(snodes)
    for at, needed in enumerate(before):
        needed.discard(at)
        left[at] = len(needed)
        for u in sorted(needed):
            after[u].append(at)
    ready = [at for at, count in enumerate(left) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for w in after[order[-1]]:
            left[w] -= 1
            if left[w] == 0:
                heappush(ready, w)
    return order if len(order) == len(snodes) else None
