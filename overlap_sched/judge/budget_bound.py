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

Under contention, what runs before v is launched also loses what collectives ahead of v on its stream take from it; and
what a narrow place counts is a chain of :mod:`overlap_sched.judge.lower_bound`. Where a group has several lanes no
collective waits for those ahead of it, and a narrow place counts as it does without contention.
"""

from collections.abc import Mapping, Sequence
from heapq import nlargest

import numpy as np

from overlap_sched.judge.lower_bound import (
    EXACT_NODES,
    Chain,
    compute_us,
    losses,
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


def budget_bound_us(problem: Problem, budget_bytes: int) -> float:
    """The bound on the step of any order with a peak of at most ``budget_bytes``, in microseconds.

    At least :func:`~overlap_sched.judge.lower_bound.lower_bound_us`, and just that above
    :data:`~overlap_sched.judge.lower_bound.EXACT_NODES` nodes: who needs whom takes a bit per node and collective.
    Both additions hold per collective or node, so looking at a few of them only makes the bound weaker.
    """
    return raised_by_budget_us(lower_bound_us(problem), problem, budget_bytes)


def raised_by_budget_us(lower_us: float, problem: Problem, budget_bytes: int) -> float:
    """The same, where :func:`~overlap_sched.judge.lower_bound.lower_bound_us` is known already."""
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
    _, needed_by = reachability(problem, collectives)
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


def _narrow_places(problem: Problem, budget_bytes: int) -> list[float]:
    nodes, us = problem.nodes, compute_us(problem)
    behind = _longest_paths(problem, us)
    size = [sum(problem.storages[s].bytes for s in {*node.alloc, *node.use}) for node in nodes]
    lost, one_lane = losses(problem), problem.contention.lanes == 1
    large = nlargest(_NARROW, ((size[v], v) for v in range(len(nodes)) if _length_us(behind[v]) > us[v] > 0))
    bounds = []
    for _, z in large:
        after = find_reachable([z], problem.successors.__getitem__)
        ahead_us = lost.total_us - us[z] - sum(us[v] for v in after)
        most_us = ahead_us + _length_us(behind[z])
        if most_us <= lost.total_us and not problem.contention:
            continue
        deferred_us = _deferred_us(problem, z, after, us, budget_bytes)
        bounds.append(most_us - deferred_us)
        if problem.contention and one_lane:
            chain = behind[z]._replace(compute_us=ahead_us - deferred_us + behind[z].compute_us)
            bounds.append(lost.step_us(chain))
    return bounds


def _longest_paths(problem: Problem, us: Sequence[float]) -> list[Chain]:
    """Per node the longest path from its start to the end, communication included."""
    paths = [Chain(0.0, 0.0, 0.0)] * len(us)
    for v in range(len(us) - 1, -1, -1):
        waits, node = problem.waits.get(v, ()), problem.nodes[v]
        longest = max((paths[w] for w in problem.successors[v] if w not in waits), key=_length_us, default=paths[v])
        longest = longest._replace(compute_us=longest.compute_us + us[v])
        if node.kind is Kind.COLLECTIVE:
            completed = max((paths[w] for w in waits), key=_length_us, default=paths[v])
            factor = problem.contention.least_slowdown_of(node.op)
            sent = Chain(
                completed.compute_us, completed.sent_us + node.time_us, completed.beside_us + node.time_us / factor
            )
            longest = max(longest, sent, key=_length_us)
        paths[v] = longest
    return paths


def _length_us(chain: Chain) -> float:
    return chain.compute_us + chain.sent_us


def _deferred_us(problem: Problem, z: int, after: set[int], us: Sequence[float], budget_bytes: int) -> float:
    """At most how much compute of what is neither before z nor after it can be left until z has run."""
    nodes, storages, maker = problem.nodes, problem.storages, problem.maker
    before = find_reachable([z], problem.predecessors.__getitem__)
    part = _parts(problem, {v for v, n in enumerate(nodes) if n.kind is not Kind.INPUT} - before - after - {z})
    needed = {s for v in (z, *after) for s in nodes[v].use} | set(nodes[z].alloc)
    needed |= {s for s, storage in enumerate(storages) if storage.pinned and nodes[maker[s]].kind is Kind.INPUT}
    there = before | {z}
    base = sum(storages[s].bytes for s in needed if maker[s] in there or nodes[maker[s]].kind is Kind.INPUT)

    sharing: dict[int, set[int]] = {}  # of what is made before z (or an input): the parts that use it
    for v, root in part.items():
        for s in nodes[v].use:
            if maker[s] not in part:
                sharing.setdefault(s, set()).add(root)

    held: dict[int, float] = {}  # per node of a part: bytes that it holds for sure while it has not run
    leaves: dict[int, float] = {}  # per storage made in a part: bytes held for sure once the part's compute has run
    part_us: dict[int, float] = {}
    part_held: dict[int, float] = {}
    part_leaves: dict[int, float] = {}
    for v in sorted(part):
        costs = [0.0]
        kept = [0.0]
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
        part_us[root] = part_us.get(root, 0.0) + us[v]
        if us[v] > 0:
            part_held[root] = min(part_held.get(root, held[v]), held[v])
        part_leaves[root] = part_leaves.get(root, 0.0) + sum(leaves[s] for s in nodes[v].alloc if s in needed)
    room = budget_bytes - base - sum(part_leaves.values())
    weights = [(part_held[r] - part_leaves[r], part_us[r]) for r in part_held]
    return _knapsack(weights, room)


def _parts(problem: Problem, beside: set[int]) -> Mapping[int, int]:
    """Per node of a set the smallest node that hangs together with it by dependencies within the set."""
    root: dict[int, int] = {}
    for v in sorted(beside):
        if v in root:
            continue
        root[v] = v
        todo = [v]
        while todo:
            u = todo.pop()
            for w in (*problem.predecessors[u], *problem.successors[u]):
                if w in beside and w not in root:
                    root[w] = v
                    todo.append(w)
    return root


def _knapsack(items: Sequence[tuple[float, float]], room: float) -> float:
    """The most value (second) of fractions of items whose weights (first, also negative) add up to the room."""
    value = sum(worth for weight, worth in items if weight <= 0)
    room -= sum(weight for weight, _ in items if weight <= 0)
    for weight, worth in sorted((i for i in items if i[0] > 0), key=lambda i: -i[1] / i[0]):
        if room <= 0:
            break
        value += worth * min(1.0, room / weight)
        room -= weight
    return value
