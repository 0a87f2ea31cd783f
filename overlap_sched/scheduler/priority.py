"""How urgent each node is: the keys by which the list scheduler chooses.

All of them are measured along one reference order, in microseconds of *compute done* (a coordinate that stalls
do not advance) or of *time left*:

latest start
    How much compute may be done before the node must run for nobody to wait for it. A collective's is packed backward
    on its group's stream, from when its first user is due::

        compute done   0 --------- latest start(u) -- latest start(v) ------ v's first user in the reference order
        group stream                     |====== u ========||======= v =======|

    A cheap node that prepares a launch (a cast before an all_gather) inherits the latest start of what it
    prepares; an expensive one stays in its place. What frees memory once it has completed (reduce_scatter, all_reduce)
    starts in its place at the latest, though nobody may need its result before the end: what it frees admits gathers.
bottom level
    The longest path from the node to the end, communication included. A node whose bottom level does not fit into the
    time that is left makes the step longer if anything runs before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.problem import Kind, NodeId, Position, Problem

CHEAP = 2e-4
"""A compute node of at most this part of all compute may be moved to prepare a launch."""


class LaunchKey(NamedTuple):
    """Of a collective and of what prepares it, in the queue of its stream: the smallest is launched first."""

    latest_start_us: float
    position: Position
    node: NodeId


class PathKey(NamedTuple):
    """Of a node by its longest path to the end: the smallest, the longest path, first."""

    minus_bottom_level_us: float
    position: Position
    node: NodeId


@dataclass(frozen=True)
class Priorities:
    """Per node id unless said otherwise, in microseconds; see the module.

    Attributes:
        compute_us: See :attr:`Problem.compute_us <overlap_sched.problem.Problem.compute_us>`.
        latest_start_us, bottom_level_us: See the module.
        stream: The group of the collective that it is or whose launch it prepares; else ``None``.
        launch_keys: Of what has a stream; else ``None``. path_keys: of every node.
        by_latest_start: Per group (not per node) its collectives.
        total_us: All compute.
        critical_path_us: Longest path of the graph, communication included: no order is shorter.
    """

    compute_us: tuple[float, ...]
    latest_start_us: list[float]
    bottom_level_us: list[float]
    stream: list[str | None]
    launch_keys: list[LaunchKey | None]
    path_keys: list[PathKey]
    by_latest_start: dict[str | None, list[int]]
    total_us: float
    critical_path_us: float


def frees_memory(problem: Problem, v: NodeId) -> bool:
    """Is v a collective whose result is smaller than its input, so that memory is freed once it is done?

    By what it holds: its waits use its inputs and its output; without waits, by what it uses and allocates.
    """
    storages, node = problem.storages, problem.nodes[v]
    if node.kind is not Kind.COLLECTIVE:
        return False
    taken = sum(storages[s].bytes for s in node.alloc)
    held = sum(storages[s].bytes for s in node.use if not storages[s].pinned)
    return held > taken


def priorities(problem: Problem, order: Sequence[int], frees: Sequence[bool], prepares: bool) -> Priorities:
    """All keys along a reference order: one sweep forward, one backward.

    Args:
        problem: What the order is of.
        order: A valid order.
        frees: Per node id, :func:`frees_memory`.
        prepares: Is compute that takes time moved to prepare a launch? Else only what takes none is.
    """
    compute = problem.compute_us
    done_before, done = [0.0] * len(compute), 0.0
    for v in order:
        done_before[v] = done
        done += compute[v]
    latest, bottom, stream = _backward(problem, order, done_before, done, CHEAP * done if prepares else 0.0, frees)
    by_latest_start: dict[str | None, list[int]] = {}
    for v in sorted(problem.collectives, key=latest.__getitem__):
        by_latest_start.setdefault(problem.nodes[v].group, []).append(v)
    launch_keys: list[LaunchKey | None] = [None] * len(compute)
    path_keys = [PathKey(0.0, 0, 0)] * len(compute)
    for at, v in enumerate(order):
        path_keys[v] = PathKey(-bottom[v], at, v)
        if stream[v] is not None:
            launch_keys[v] = LaunchKey(latest[v], at, v)
    return Priorities(
        compute_us=compute,
        latest_start_us=latest,
        bottom_level_us=bottom,
        stream=stream,
        launch_keys=launch_keys,
        path_keys=path_keys,
        by_latest_start=by_latest_start,
        total_us=done,
        critical_path_us=max(bottom),
    )


def _backward(
    problem: Problem, order: Sequence[int], done_before: list[float], end: float, cheap: float, frees: Sequence[bool]
) -> tuple[list[float], list[float], list[str | None]]:
    """Latest starts, bottom levels, and for which stream a node is launched (or prepares a launch)."""
    nodes, successors = problem.nodes, problem.successors
    latest, bottom = [0.0] * len(nodes), [0.0] * len(nodes)
    launch = [math.inf] * len(nodes)  # the latest start of a launch that the node is or prepares
    stream: list[str | None] = [None] * len(nodes)  # and its group
    compute = problem.compute_us
    on_stream: dict[str | None, float] = {}  # the latest start of what follows on the group's stream
    for v in reversed(order):
        node, us = nodes[v], compute[v]
        if node.kind is Kind.COLLECTIVE:
            needed, path = on_stream.get(node.group, end), 0.0
            for w in successors[v]:
                if nodes[w].collective == v:
                    needed = min(needed, latest[w])
                    path = max(path, bottom[w])
                else:  # needs the launch only
                    needed = min(needed, latest[w] + node.time_us)
                    bottom[v] = max(bottom[v], bottom[w])
            bottom[v] = max(bottom[v], path + node.time_us)
            latest[v] = on_stream[node.group] = needed - node.time_us
            if frees[v]:
                latest[v] = min(latest[v], done_before[v])
            launch[v], stream[v] = latest[v], node.group
            continue
        needed, path, prepared, group = end, 0.0, math.inf, None
        for w in successors[v]:
            if latest[w] < needed:
                needed = latest[w]
            if bottom[w] > path:
                path = bottom[w]
            if launch[w] < prepared:
                prepared, group = launch[w], stream[w]
        bottom[v] = path + us
        if node.kind is Kind.WAIT:
            latest[v] = needed
        elif us > cheap:
            latest[v] = done_before[v]
        elif prepared < math.inf:
            latest[v] = launch[v] = prepared - us
            stream[v] = group
        else:
            latest[v] = min(done_before[v], needed - us) if us else needed
    return latest, bottom, stream
