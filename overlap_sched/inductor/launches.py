"""The launch sequence of a graph: which collectives it starts, in which order, on which groups.

Read without lifting the graph, so that a rank that cannot schedule it still has one to show. Operators that communicate
on the compute stream are part of it: they too must meet their partners in order.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from torch import fx

from overlap_sched.distributed.digest import launches_of
from overlap_sched.fx.collectives import Comm, Role
from overlap_sched.fx.groups import live_ranks, name_and_group
from overlap_sched.fx.operators import traits_of

Launches = tuple[fx.Node, ...]
"""The FX nodes that communicate, waits apart, in the order in which they do."""


def launches_in(nodes: Iterable[fx.Node]) -> Launches:
    """Those of an FX graph."""
    return tuple(node for node in nodes if _launch(node) is not None)


def kernel_launches(snodes: Sequence[Any]) -> Launches | None:
    """Those of Inductor's scheduler nodes: the FX nodes that they came from.

    ``None``: one of them comes from no single FX node.
    """
    from overlap_sched.inductor import private

    found: list[fx.Node] = []
    for snode in snodes:
        for member in private.members(snode):
            if private.is_collective(member.node) or _launch(getattr(member.node, "origin_node", None)) is not None:
                origins = [node for node in member.node.origins if _launch(node) is not None]
                if len(origins) != 1:
                    return None
                found += origins
    return tuple(dict.fromkeys(found))


def launch_digest(launches: Launches) -> str:
    """What ranks with equal launch sequences have in common, see :func:`overlap_sched.distributed.digest.launches_of`.

    Ranks of a mesh have other groups each, so a group is known by its size and the distances of its ranks.
    """
    sequence = []
    for node in launches:
        comm, (name, live) = _launch(node), name_and_group(node)
        ranks = live_ranks(name if live is None else live)
        sequence.append((comm.op if comm else "", name, None if ranks is None else [b - a for a, b in pairwise(ranks)]))
    return launches_of(sequence)


def _launch(node: fx.Node | None) -> Comm | None:
    """What a node communicates; ``None``: nothing, or it only waits."""
    comm = traits_of(node.target).comm if node is not None and node.op == "call_function" else None
    return None if comm is None or comm.role is Role.WAIT else comm
