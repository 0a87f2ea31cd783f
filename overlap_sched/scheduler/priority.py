"""How urgent each node is: the keys by which :mod:`overlap_sched.scheduler.choose` chooses.

All of them are measured along one reference order, in microseconds of *compute done* (a coordinate that stalls
do not advance) or of *time left*:

``place``
    The compute that stands before the node in the reference order.
``due``
    The latest start: how much compute may be done before the node must run for nobody to wait for it. A
    collective's is packed backward on its group's stream, from when its first user is due::

        compute done   0 ---------------- due(u) -- due(v) ------ place of v's first user
        group stream                        |== u ==||==== v ====|

    A cheap node that prepares a launch (a cast before an all_gather) inherits the latest start of what it
    prepares; an expensive one stays in its place. What frees memory when it is done (reduce_scatter,
    all_reduce) is due in its place at the latest: a gather of equal urgency takes memory and comes after it.
``tail``
    The longest path from the node to the end, communication included. A node whose tail does not fit into the
    time that is left makes the step longer if anything runs before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.problem import Kind, Problem

CHEAP = 2e-4
"""A compute node of at most this part of all compute may be moved to prepare a launch."""


@dataclass(frozen=True)
class Keys:
    """Per node id, in microseconds; see the module.

    Attributes:
        compute_us: See :attr:`Problem.compute_us <overlap_sched.problem.Problem.compute_us>`.
        stream: The group of the collective that it is or whose launch it prepares; else ``None``.
        coming: Per group (not per node) its collectives by latest start.
        total_us: Sum of ``compute_us``.
        longest_us: Longest path of the graph, communication included.
    """

    compute_us: tuple[float, ...]
    place_us: list[float]
    due_us: list[float]
    tail_us: list[float]
    stream: list[str | None]
    coming: dict[str | None, list[int]]
    total_us: float
    longest_us: float


def frees(problem: Problem, v: int) -> bool:
    """Is v a collective whose result is smaller than its input, so that memory is freed once it is done?

    By what it holds: its waits use its inputs and its output; without waits, by what it uses and allocates.
    """
    storages, node = problem.storages, problem.nodes[v]
    taken = sum(storages[s].bytes for s in node.alloc)
    held = sum(storages[s].bytes for s in node.use if not storages[s].pinned)
    return held > taken


def keys(problem: Problem, order: Sequence[int], prepares: bool = True) -> Keys:
    """All keys along a reference order: one sweep forward, one backward.

    Args:
        problem: What the order is of.
        order: A valid order.
        prepares: Is compute that takes time moved to prepare a launch? Else only what takes none is.
    """
    compute = problem.compute_us
    place, done = [0.0] * len(compute), 0.0
    for v in order:
        place[v] = done
        done += compute[v]
    due, tail, stream = _backward(problem, order, place, done, CHEAP * done if prepares else 0.0)
    coming: dict[str | None, list[int]] = {}
    for v in sorted(problem.collectives, key=due.__getitem__):
        coming.setdefault(problem.nodes[v].group, []).append(v)
    return Keys(compute, place, due, tail, stream, coming, done, max(tail))


def _backward(
    problem: Problem, order: Sequence[int], place: list[float], end: float, cheap: float
) -> tuple[list[float], list[float], list[str | None]]:
    """Latest starts, longest paths to the end, and for which stream a node is launched (or prepares a launch)."""
    nodes, successors = problem.nodes, problem.successors
    due, tail = [0.0] * len(nodes), [0.0] * len(nodes)
    launch = [math.inf] * len(nodes)  # the latest start of a launch that the node is or prepares
    stream: list[str | None] = [None] * len(nodes)  # and its group
    compute = problem.compute_us
    stream_due: dict[str | None, float] = {}  # the latest start of what follows on the group's stream
    for v in reversed(order):
        node, us = nodes[v], compute[v]
        if node.kind is Kind.COLLECTIVE:
            needed, path = stream_due.get(node.group, end), 0.0
            for w in successors[v]:
                if nodes[w].collective == v:
                    needed = min(needed, due[w])
                    path = max(path, tail[w])
                else:  # needs the launch only
                    needed = min(needed, due[w] + node.time_us)
                    tail[v] = max(tail[v], tail[w])
            tail[v] = max(tail[v], path + node.time_us)
            due[v] = stream_due[node.group] = needed - node.time_us
            if frees(problem, v):
                due[v] = min(due[v], place[v])
            launch[v], stream[v] = due[v], node.group
            continue
        needed, path, prepared, group = end, 0.0, math.inf, None
        for w in successors[v]:
            if due[w] < needed:
                needed = due[w]
            if tail[w] > path:
                path = tail[w]
            if launch[w] < prepared:
                prepared, group = launch[w], stream[w]
        tail[v] = path + us
        if node.kind is Kind.WAIT:
            due[v] = needed
        elif us > cheap:
            due[v] = place[v]
        elif prepared < math.inf:
            due[v] = launch[v] = prepared - us
            stream[v] = group
        else:
            due[v] = min(place[v], needed - us) if us else needed
    return due, tail, stream
