"""Scheduler nodes with their launches in the order of the FX graph, where torch has put them into another one.

Inductor keeps collectives in the order of the graph, but it does not know what communicates inside an operator, and
moves that past them, for memory. On ranks with equal graphs it does so alike; where graphs differ, it may not. So
ranks that keep their launches keep those of the FX graph that Inductor lowers.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from overlap_sched.fx.communication import Communications
from overlap_sched.inductor.launches import launches_of_kernel
from overlap_sched.inductor.lift.nearest import nearest


def in_graph_order(snodes: Sequence[Any]) -> list[Any]:
    """The nodes with all that launches, or may, in the order of the FX graph, each else as near to its place as can be.

    As they were where that is their order, where it is not known what they launch, or where their dependencies do not
    allow another order. Torch's dependencies are kept, and the order of what has effects or draws random numbers.
    """
    from overlap_sched.inductor import private

    graph = private.V.graph.graph
    known, place = Communications(graph), {node: at for at, node in enumerate(graph.nodes)}
    launches = [launches_of_kernel(snode, known) for snode in snodes]
    if None in launches:
        return list(snodes)
    first = {at: min(place[node] for node in nodes) for at, nodes in enumerate(launches) if nodes}
    wanted = sorted(first, key=lambda at: first[at])
    if wanted == sorted(wanted):
        return list(snodes)
    apart = [at for at, snode in enumerate(snodes) if at not in first and _impure(snode)]
    order = nearest(snodes, (*pairwise(wanted), *pairwise(apart)))
    return list(snodes) if order is None else [snodes[at] for at in order]


def _impure(snode: Any) -> bool:
    """Tell whether a node runs an operator that has effects or draws random numbers, or may."""
    from overlap_sched.fx.hazards import Ordering
    from overlap_sched.fx.operators import traits_of
    from overlap_sched.inductor import private

    if snode.has_side_effects():
        return True
    members = [member for member in private.members(snode) if private.runs(member)]
    origins = (node for member in members for node in getattr(member.node, "origins", ()) or ())
    return any(n.op == "call_function" and traits_of(n.target).ordering is not Ordering.NONE for n in origins)
