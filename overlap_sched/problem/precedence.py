"""What must run before what: the problem's own rules, and the launch order of collectives where it is to be kept.

``preserve`` is that of :class:`~overlap_sched.options.Options`. A launch order is kept by pairs of neighbours::

    launches         gather_0 (fsdp)   gather_1 (fsdp)   reduce (tp)   scatter_0 (fsdp)
    "group"              |-----------------^ |---------------------------------^
    "all"                |-----------------^ |----------------^ |--------------^

Compute that communicates by itself (``Node.launches``) is a launch among the others. "waits" is "all", and each wait
behind the last launch that stood before it: no wait then passes a launch that it followed.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, TypeVar

import numpy as np

from overlap_sched.problem import ANY_GROUP, Kind, Node, NodeId, Order, Position, Problem

T = TypeVar("T", bound=Hashable)

Preserve = Literal["none", "group", "all", "waits"]
"""Whose launch order is kept: nobody's, that within each process group, or that across all groups, for waits too."""

Pair = tuple[NodeId, NodeId]
"""Two node ids: the first must run before the second."""

Neighbours = tuple[Sequence[tuple[NodeId, ...]], Sequence[tuple[NodeId, ...]]]
"""Per node id, what must run before it, and what after it."""


def launch_pairs(problem: Problem, order: Iterable[int], preserve: Preserve) -> tuple[Pair, ...]:
    """Pairs of nodes that keep the launches of an order as they are; linear."""
    if preserve == "none":
        return ()
    pairs: list[Pair] = []
    last: dict[str, int] = {}  # per group; that of ANY_GROUP is older than all others
    for v in order:
        node = problem.nodes[v]
        groups = launched_on(node)
        if not groups:
            if preserve == "waits" and node.kind is Kind.WAIT:
                pairs += [(u, v) for u in last.values()]
            continue
        if preserve in ("all", "waits") or ANY_GROUP in groups:
            before, groups = list(last.values()), (ANY_GROUP,)
            last.clear()
        else:
            before = [last.get(group, last.get(ANY_GROUP, -1)) for group in groups]
        pairs += [(u, v) for u in dict.fromkeys(before) if u >= 0]
        last.update(dict.fromkeys(groups, v))
    return tuple(pairs)


def launched_on(node: Node) -> tuple[str, ...]:
    """The process groups on which a node launches."""
    return node.launches if node.kind is not Kind.COLLECTIVE or node.group is None else (node.group,)


def neighbours(problem: Problem, pairs: Iterable[Pair]) -> Neighbours:
    """Per node, what must run before it and what after it: the problem's rules, and the pairs; without repeats."""
    before, after = list(problem.predecessors), list(problem.successors)
    more: dict[NodeId, dict[NodeId, None]] = {}
    for u, v in pairs:
        more.setdefault(v, {})[u] = None
    behind: dict[NodeId, list[NodeId]] = {}
    for v, first in more.items():
        known = set(before[v])
        new = [u for u in first if u not in known]
        before[v] = (*before[v], *new)
        for u in new:
            behind.setdefault(u, []).append(v)
    for u, nodes in behind.items():
        after[u] = (*after[u], *nodes)
    return before, after


def by_key(problem: Problem, pairs: Sequence[Pair], key: Sequence[float]) -> Order | None:
    """The nodes by their keys, each as soon as it may run; ``None``: the pairs contradict the rules of the graph."""
    return smallest_first(*neighbours(problem, pairs), key)


def smallest_first(
    before: Sequence[Collection[NodeId]], after: Sequence[Iterable[NodeId]], key: Sequence[float]
) -> Order | None:
    """Always the smallest key that may come, given what comes before and after each; ``None``: some form a ring."""
    left = [len(nodes) for nodes in before]
    ready = [(key[v], v) for v, count in enumerate(left) if count == 0]
    heapify(ready)
    order: list[NodeId] = []
    while ready:
        _, v = heappop(ready)
        order.append(v)
        for w in after[v]:
            left[w] -= 1
            if left[w] == 0:
                heappush(ready, (key[w], w))
    return tuple(order) if len(order) == len(left) else None


def positions(order: Sequence[NodeId]) -> list[Position]:
    """Per node, where it stands in an order of all."""
    found = np.empty(len(order), dtype=np.int64)
    found[np.array(order, dtype=np.int64)] = np.arange(len(order))
    places: list[Position] = found.tolist()
    return places


def moving_with(
    v: NodeId, following: Sequence[tuple[NodeId, ...]], position: Sequence[Position], places: range, most: int
) -> frozenset[NodeId]:
    """A node with all at some places that must move with it; empty where that is more than so many.

    Args:
        v: The node.
        following: Per node, what must move with it: what it needs, or what needs it.
        position: Per node, its place.
        places: Those that count.
        most: So many nodes at most, v among them.
    """
    moved, look = {v}, [v]
    while look:
        for u in following[look.pop()]:
            if position[u] in places and u not in moved:
                if len(moved) == most:
                    return frozenset()
                moved.add(u)
                look.append(u)
    return frozenset(moved)


def with_sooner(order: Order, moved: Collection[NodeId], at: Position) -> Order:
    """The order with nodes from behind a place right in front of what stands there."""
    behind = order[at:]
    return (*order[:at], *(v for v in behind if v in moved), *(v for v in behind if v not in moved))


def alike(one: Sequence[NodeId], other: Sequence[NodeId]) -> int:
    """How many nodes two orders have in common at their beginning. By bisection: what is equal is compared fast."""
    return bisect_left(range(len(one)), True, key=lambda k: one[: k + 1] != other[: k + 1])


def find_reachable(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """Find what follows on the first nodes, on that, and so on; they themselves only where they follow on others.

    >>> sorted(find_reachable(["b"], {"a": "b", "b": "cd", "c": "d", "d": ""}.__getitem__))
    ['c', 'd']
    """
    found, todo = set[T](), list(start)
    while todo:
        for node in following(todo.pop()):
            if node not in found:
                found.add(node)
                todo.append(node)
    return found
