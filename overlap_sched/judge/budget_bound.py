"""A step time that no order within a memory budget can beat: the lower bound, and two more.

**The end of a stream.** For a collective v, let "compute of u" be compute that u (of the same group) needs and v does
not, each node counted for one u only. All of it runs before v is launched, or u stands behind v on the stream::

    compute       |= what v needs =|= wgrad =|               weight gradients deferred to hide v
    group stream                   |==== v ====|= scatter =| bring reduce_scatters of their own

    step >= all compute that v needs + time(v) + sum over u of min(time(u), compute of u)

**A narrow place.** For a node z, what is neither needed by z nor needs it falls into parts that share no dependency.
While z runs, some storages are live whatever the order: what z and its successors use of what is made before z. A part
that is not finished by then holds at least one of its storages, or one that it still has to use; a finished one holds
what it leaves to others. What fits beside z is a fractional knapsack of parts; all other compute has run before z::

    step >= all compute before z or beside it - what can be deferred beyond z + bottom level of z

Under contention, what runs before v is launched also loses what collectives ahead of v on its stream take from it.
Where a group has several lanes no collective waits for those ahead of it.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import nlargest

import numpy as np

from overlap_sched.judge.lower_bound import (
    EXACT_NODES,
    bottom_levels,
    compute_us,
    lower_bound_us,
    part_lost,
    reachability,
    unpack,
    with_least_times,
)
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.precedence import find_reachable

_LATEST = 32
"""Collectives per group whose stream's end is looked at: those that need the most compute."""
_NARROW = 12
"""Nodes that are looked at as narrow places: those whose own step takes the most memory."""


def budget_bound_us(problem: Problem, budget_bytes: int, lower_us: float | None = None) -> float:
    """The bound on the step of any order with a peak of at most ``budget_bytes``, in microseconds.

    At least :func:`~overlap_sched.judge.lower_bound.lower_bound_us` (``lower_us``, where it is known already), and just
    that above :data:`~overlap_sched.judge.lower_bound.EXACT_NODES` nodes: who needs whom takes a bit per node and
    collective. Both additions hold per collective or node, so looking at a few of them only makes the bound weaker.
    """
    lower_us = lower_bound_us(problem) if lower_us is None else lower_us
    if len(problem.nodes) > EXACT_NODES:
        return lower_us
    problem = with_least_times(problem)
    ends = _ends_of_streams(problem) if problem.contention.lanes == 1 else []
    return max([lower_us, *ends, *_narrow_places(problem, budget_bytes)])


def _ends_of_streams(problem: Problem) -> list[float]:
    nodes, collectives, us = problem.nodes, problem.collectives, compute_us(problem)
    busy = [v for v, time_us in enumerate(us) if time_us > 0]
    if not collectives or not busy:
        return []
    busy_us = np.array([us[v] for v in busy])
    _, needed_by = reachability(problem)
    needed = unpack([needed_by[v] for v in busy], len(collectives))  # [node, collective]
    head_us = busy_us @ needed
    bounds = []
    for group in sorted({nodes[v].group or "" for v in collectives}):
        mine = np.array([k for k, v in enumerate(collectives) if nodes[v].group == group])
        comm_us = np.array([nodes[collectives[k]].time_us for k in mine])
        lost_us = comm_us * [part_lost(problem, collectives[k]) for k in mine]
        column = needed[:, mine]
        owner = column.argmax(axis=1)  # the first of the group that needs it
        owns = np.flatnonzero(column[np.arange(len(busy)), owner])
        for k in np.argsort(head_us[mine])[-_LATEST:]:
            besides = busy_us[owns] * (1.0 - column[owns, k])
            of_each_us = np.bincount(owner[owns], besides, len(mine)) + lost_us
            of_each_us[k] = 0.0
            bounds.append(float(head_us[mine[k]] + comm_us[k] + np.minimum(of_each_us, comm_us).sum()))
    return bounds


def _narrow_places(problem: Problem, budget_bytes: int) -> Iterator[float]:
    nodes, us, levels = problem.nodes, compute_us(problem), bottom_levels(problem)
    size = [sum(problem.storages[s].bytes for s in {*node.alloc, *node.use}) for node in nodes]
    for _, z in nlargest(_NARROW, ((size[v], v) for v in range(len(nodes)) if levels[v] > us[v] > 0)):
        after = find_reachable([z], problem.successors.__getitem__)
        most_us = sum(us) - us[z] - sum(us[v] for v in after) + levels[z]
        if most_us > sum(us):
            yield most_us - _deferred_us(problem, z, after, us, budget_bytes)


def _deferred_us(problem: Problem, z: int, after: set[int], us: Sequence[float], budget_bytes: int) -> float:
    """At most how much compute of what is neither before z nor after it can be left until z has run."""
    nodes, storages, maker = problem.nodes, problem.storages, problem.maker
    before = find_reachable([z], problem.predecessors.__getitem__)
    part = _parts(problem, {v for v, n in enumerate(nodes) if n.kind is not Kind.INPUT} - before - after - {z})
    given = {s for s, v in enumerate(maker) if nodes[v].kind is Kind.INPUT}
    needed = {s for v in (z, *after) for s in nodes[v].use} | set(nodes[z].alloc)
    needed |= {s for s in given if storages[s].pinned}
    base = sum(storages[s].bytes for s in needed if s in given or maker[s] in before or maker[s] == z)

    sharing = defaultdict[int, set[int]](set)  # of what is made before z (or an input): the parts that use it
    for v, root in part.items():
        for s in nodes[v].use:
            if maker[s] not in part:
                sharing[s].add(root)

    held: dict[int, float] = {}  # per node of a part: bytes that it holds for sure while it has not run
    leaves: dict[int, float] = {}  # per storage made in a part: bytes held for sure once the part's compute has run
    part_us, part_held, part_leaves = defaultdict[int, float](float), dict[int, float](), defaultdict[int, float](float)
    for v in sorted(part):
        costs, kept = [0.0], [0.0]
        for s in nodes[v].use:
            if maker[s] in part:
                costs.append(min(float(storages[s].bytes), held[maker[s]]) if maker[s] != v else 0.0)
                kept.append(leaves.get(s, 0.0))
            elif s not in needed:
                costs.append(storages[s].bytes / len(sharing[s]))
        held[v] = max(costs)
        for s in nodes[v].alloc:
            leaves[s] = float(storages[s].bytes) if us[v] > 0 else min(float(storages[s].bytes), max(kept))
        root = part[v]
        part_us[root] += us[v]
        if us[v] > 0:
            part_held[root] = min(part_held.get(root, held[v]), held[v])
        part_leaves[root] += sum(leaves[s] for s in nodes[v].alloc if s in needed)
    room = budget_bytes - base - sum(part_leaves.values())
    weights = [(part_held[r] - part_leaves[r], part_us[r]) for r in part_held]
    return _knapsack(weights, room)


def _parts(problem: Problem, beside: set[int]) -> dict[int, int]:
    """Per node of a set the smallest node that hangs together with it by dependencies within the set."""
    root, both = dict[int, int](), (problem.predecessors, problem.successors)
    for v in sorted(beside):
        if v not in root:
            joined = find_reachable([v], lambda u: [w for ids in both for w in ids[u] if w in beside])
            root.update(dict.fromkeys((v, *joined), v))
    return root


def _knapsack(items: Sequence[tuple[float, float]], room: float) -> float:
    """The most value (second) of fractions of items whose weights (first, also negative) add up to the room."""
    value = 0.0
    for weight, worth in sorted(items, key=lambda item: -math.inf if item[0] <= 0 else -item[1] / item[0]):
        value += worth * (1.0 if weight <= 0 else min(1.0, max(room, 0.0) / weight))
        room -= weight
    return value
