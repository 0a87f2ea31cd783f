"""What must run before what: the problem's own rules, and the launch order of collectives where it is to be kept.

``preserve`` is that of :class:`~overlap_sched.options.Options`. A launch order is kept by pairs of neighbours::

    launches         gather_0 (fsdp)   gather_1 (fsdp)   reduce (tp)   scatter_0 (fsdp)
    "group"              |-----------------^ |---------------------------------^
    "all"                |-----------------^ |----------------^ |--------------^
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from overlap_sched.problem.model import Problem
from overlap_sched.problem.node import Kind, NodeId, Position

Preserve = Literal["none", "group", "all"]
"""Whose launch order is kept: nobody's, that within each process group, or that across all groups."""

Pair = tuple[NodeId, NodeId]
"""Two node ids: the first must run before the second."""

Neighbours = tuple[Sequence[tuple[NodeId, ...]], Sequence[tuple[NodeId, ...]]]
"""Per node id, what must run before it, and what after it."""


def launch_pairs(problem: Problem, order: Iterable[int], preserve: Preserve) -> tuple[Pair, ...]:
    """Pairs of collectives that keep the launches of an order as they are; linear."""
    if preserve == "none":
        return ()
    pairs: list[Pair] = []
    last: dict[str | None, int] = {}
    for v in order:
        node = problem.nodes[v]
        if node.kind is Kind.COLLECTIVE:
            key = node.group if preserve == "group" else None
            if key in last:
                pairs.append((last[key], v))
            last[key] = v
    return tuple(pairs)


def neighbours(problem: Problem, pairs: Iterable[Pair]) -> Neighbours:
    """Per node, what must run before it and what after it: the problem's rules, and the pairs; without repeats."""
    before, after = list(problem.predecessors), list(problem.successors)
    for u, v in pairs:
        if u not in before[v]:
            before[v] = (*before[v], u)
            after[u] = (*after[u], v)
    return before, after


def positions(order: Sequence[NodeId]) -> list[Position]:
    """Per node, where it stands in an order of all."""
    found = np.empty(len(order), dtype=np.int64)
    found[np.array(order, dtype=np.int64)] = np.arange(len(order))
    places: list[Position] = found.tolist()
    return places


def alike(one: Sequence[NodeId], other: Sequence[NodeId]) -> int:
    """How many nodes two orders have in common at their beginning. By bisection: what is equal is compared fast."""
    low, high = 0, len(one)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
