"""A step time that no order can beat, whatever memory it is given.

For collectives u, v let c(u -> v) be the compute that must run after u has finished and before v is launched.

    start(v) >= max( all compute that v needs,  max over u that must have finished before v of
                                                start(u) + time(u) + c(u -> v) )

    step >= (a) all compute
            (b) start(v) + time(v) + all compute that needs v finished
            (c) per link: its earliest start + all its time + the least compute after any of it
            (d) all compute + what the collectives of one link take from it (0 without contention)

"Finished" means that a wait of u lies between: a node that merely needs u launched does not wait for it. A link is a
group's own, but where groups share one: they do its work at its rate at most, like one group. Where a group has several
lanes (:mod:`overlap_sched.problem.contention`), (c) counts crowding / lanes of all its time, and (d) is left out. While
a collective of a factor s is in flight, compute does at most 1 / s of its work, so it takes at least 1 - 1/s of that
time from compute. Where a collective goes faster beside compute than alone (``Contention.stretch`` below 1) it may
take less than its time, but never less than time * stretch, and that counts::

    alone             |====== 40 ======|
    beside compute    |=== 20 ===|            stretch 0.5: a bound counts 20

One reachability bit set per side (Python integers, one bit per collective) and one matrix product over the
nodes that take time: well under a second for ten thousand nodes. Above ``EXACT_NODES`` nodes this bound is taken of
parts, and added up. Parts lie between checkpoints S1, S2, ..., nodes on a longest path, each an ancestor of the next::

    nodes           . . S1 . . . v . . S2 . . .       v needs S1, and S2 needs v: it runs between them

That is true as well, mostly lower, and linear in nodes; (a), (c) and (d) hold for the whole graph, with longest paths
in the place of starts and of what is behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Problem

EXACT_NODES = 16_384
"""Graphs of at most this many nodes have the bound of the whole graph."""

_APART = 1024  # ids from one checkpoint to the next, at least
_ROWS = 2048  # nodes per block of the matrix product: bounds its memory at 2 * _ROWS * collectives doubles


def lower_bound_us(problem: Problem) -> float:
    """The bound on the step, in microseconds; that of parts above :data:`EXACT_NODES` nodes."""
    problem = with_least_times(problem)
    return whole_bound_us(problem) if len(problem.nodes) <= EXACT_NODES else parts_bound_us(problem)


def with_least_times(problem: Problem) -> Problem:
    """The same problem with the least time of each collective; itself where none goes faster beside compute."""
    contention = problem.contention
    if all(factor >= 1.0 for factor in contention.stretch.values()):
        return problem
    nodes = tuple(
        node._replace(time_us=node.time_us * min(contention.stretch_of(node.op), 1.0))
        if node.kind is Kind.COLLECTIVE
        else node
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes, contention=replace(contention, stretch={}))


def compute_us(problem: Problem) -> list[float]:
    """Per node, microseconds on the compute stream: 0 for collectives and waits."""
    return [0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us for node in problem.nodes]


def unpack(bits: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    """Sets of numbers below ``count`` as rows of 0.0 and 1.0; time and space: their number times ``count``."""
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(b.to_bytes(width, "little") for b in bits), dtype=np.uint8)
    rows = np.unpackbits(packed.reshape(len(bits), width), axis=1, bitorder="little")[:, :count]
    return rows.astype(np.float64)


def reachability(problem: Problem) -> tuple[list[int], list[int]]:
    """Per node two bit sets over collectives: which have finished before it, which need it to run."""
    nodes, before = problem.nodes, problem.predecessors
    bit = {v: 1 << k for k, v in enumerate(problem.collectives)}
    finished, needed_by = [0] * len(nodes), [0] * len(nodes)
    for v, node in enumerate(nodes):
        finished[v] = 0 if node.collective is None else bit[node.collective]
        for u in before[v]:
            finished[v] |= finished[u]
    for v in range(len(nodes) - 1, -1, -1):
        for u in before[v]:
            needed_by[u] |= needed_by[v] | bit.get(v, 0)
    return finished, needed_by


def bottom_levels(problem: Problem) -> list[float]:
    """Per node the longest path from its start to the end, communication included."""
    levels = compute_us(problem)
    for v in range(len(levels) - 1, -1, -1):
        waits = problem.waits.get(v, ())
        levels[v] += max([levels[w] for w in problem.successors[v] if w not in waits], default=0.0)
        if problem.nodes[v].kind is Kind.COLLECTIVE:
            levels[v] = max(levels[v], problem.nodes[v].time_us + max([levels[w] for w in waits], default=0.0))
    return levels


def part_lost(problem: Problem, v: NodeId) -> float:
    """The part of a collective's time that it takes from compute, at the least."""
    return 1 - 1 / problem.contention.least_slowdown_of(problem.nodes[v].op)


def whole_bound_us(problem: Problem) -> float:
    """The bound, with all pairs of collectives."""
    nodes, collectives, us = problem.nodes, problem.collectives, compute_us(problem)
    busy = [v for v, time_us in enumerate(us) if time_us > 0]
    busy_us = np.array([us[v] for v in busy])
    total_us, count = float(busy_us.sum()), len(collectives)
    if not collectives:
        return total_us
    finished, needed_by = reachability(problem)
    comm_us = np.array([nodes[v].time_us for v in collectives])
    start_us, behind_us = np.zeros(count), np.zeros(count)
    between = np.zeros((count, count))  # [u, v]: c(u -> v)
    for low in range(0, len(busy), _ROWS):
        rows, rows_us = busy[low : low + _ROWS], busy_us[low : low + _ROWS]
        after = unpack([finished[v] for v in rows], count) * rows_us[:, None]
        before = unpack([needed_by[v] for v in rows], count)
        start_us += rows_us @ before
        behind_us += after.sum(axis=0)
        between += after.T @ before
    for k, v in enumerate(collectives):
        earlier = np.flatnonzero(unpack([finished[v]], count)[0])
        if len(earlier):
            start_us[k] = max(start_us[k], (start_us[earlier] + comm_us[earlier] + between[earlier, k]).max())
    ends_us = start_us + comm_us + behind_us
    return max(total_us, float(ends_us.max()), *_of_links(problem, total_us, start_us.tolist(), behind_us.tolist()))


def _of_links(
    problem: Problem, total_us: float, start_us: Sequence[float], behind_us: Sequence[float]
) -> Iterator[float]:
    """The bounds (c) and (d); starts, and what is behind, per collective."""
    contention, nodes = problem.contention, problem.nodes
    links: dict[str, list[int]] = {}
    for k, v in enumerate(problem.collectives):
        links.setdefault(contention.link_of(nodes[v].group), []).append(k)
    for mine in links.values():
        ids = [problem.collectives[k] for k in mine]
        together_us = sum(nodes[v].time_us for v in ids) * contention.crowding / contention.lanes
        yield min(start_us[k] for k in mine) + together_us + min(behind_us[k] for k in mine)
        if contention.lanes == 1:
            yield total_us + sum(part_lost(problem, v) * nodes[v].time_us for v in ids)


def parts_bound_us(problem: Problem, apart: int = _APART) -> float:
    """The bound of parts, between checkpoints that are at least so many ids apart."""
    problem = with_least_times(problem)
    nodes, us, levels = problem.nodes, compute_us(problem), bottom_levels(problem)
    head_us, longest = [0.0] * len(nodes), [-1] * len(nodes)
    for v, node in enumerate(nodes):
        for u in problem.predecessors[v]:
            done_us = head_us[u] + (nodes[u].time_us if u == node.collective else us[u])
            if done_us > head_us[v] or longest[v] < 0:
                head_us[v], longest[v] = done_us, u
    v, checkpoints = max(range(len(nodes)), key=lambda v: head_us[v] + nodes[v].time_us), [len(nodes)]
    while v >= 0:
        if nodes[v].kind is Kind.COMPUTE and checkpoints[-1] - v >= apart:
            checkpoints.append(v)
        v = longest[v]
    parts = pairwise([-1, *reversed(checkpoints)])
    chained_us, total_us = sum(_part_us(problem, low, high) for low, high in parts), sum(us)
    start_us = [head_us[v] for v in problem.collectives]
    behind_us = [max([levels[w] for w in problem.waits.get(v, ())], default=0.0) for v in problem.collectives]
    return max(chained_us, total_us, *_of_links(problem, total_us, start_us, behind_us))


def _part_us(problem: Problem, low: NodeId, high: NodeId) -> float:
    """The bound of what must run behind one node and up to another, which needs it; -1, len(nodes): no such node."""
    nodes, before, end = problem.nodes, problem.predecessors, len(problem.nodes)
    behind, ahead = set[NodeId](), {high}
    for v in range(low + 1, min(high + 1, end)):
        if low < 0 or any(u == low or u in behind for u in before[v]):
            behind.add(v)
    for v in range(min(high, end - 1), low, -1):
        if high == end or v in ahead:
            ahead.update((v, *before[v]))
    place = {v: at for at, v in enumerate(sorted(behind & ahead))}
    finished = place.keys() if high == end else {nodes[v].collective for v in place}
    part = tuple(
        nodes[v]._replace(
            deps=tuple(place[u] for u in before[v] if u in place),
            alloc=(),
            use=(),
            time_us=0.0 if nodes[v].kind is Kind.COLLECTIVE and v not in finished else nodes[v].time_us,
            collective=None if (launch := nodes[v].collective) is None else place.get(launch),
        )
        for v in place
    )
    return whole_bound_us(replace(problem, nodes=part, storages=())) if part else 0.0
