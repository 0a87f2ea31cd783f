"""The launch sequence of a graph: which collectives it starts, in which order, on which groups.

Read without lifting the graph, so that a rank that cannot schedule it still has one to show. What communicates on the
compute stream is part of it, or may: it too must meet its partners in order. So are the launches in sub-graphs.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from torch import fx

from overlap_sched.distributed.digest import launches_of
from overlap_sched.fx.communication import Communications, Launched
from overlap_sched.fx.groups import live_ranks
from overlap_sched.problem.node import ANY_GROUP

Launches = tuple[fx.Node, ...]
"""The FX nodes that communicate, waits apart, in the order in which they do."""


def launches_in(nodes: Iterable[fx.Node]) -> Launches:
    """Those of an FX graph."""
    listed = list(nodes)
    known = Communications(listed[0].graph) if listed else None
    return tuple(node for node in listed if known is not None and known.of(node))


def launch_digest(launches: Launches) -> str:
    """Return what ranks with equal launch sequences share, see :func:`overlap_sched.distributed.digest.launches_of`.

    Ranks of a mesh have other groups each, so a group is known by its size and the distances of its ranks.
    """
    known = Communications(launches[0].graph) if launches else None
    sequence = [one for node in launches if known is not None for one in known.of(node)]
    return launches_of([(one.op, name, distances) for one in sequence for name, distances in _groups(one)])


def _groups(launched: Launched) -> Iterator[tuple[str, list[int] | None]]:
    """The names of process groups, and how far their ranks are from each other, where that is known."""
    for name, live in launched.groups or ((ANY_GROUP, None),):
        ranks = live_ranks(name if live is None else live)
        yield name, None if ranks is None else [b - a for a, b in pairwise(ranks)]
