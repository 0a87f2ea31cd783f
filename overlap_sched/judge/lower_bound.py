"""A step time that no order can beat, whatever memory it is given.

For collectives u, v let c(u -> v) be the compute that must run after u has finished and before v is launched.

    start(v) >= max( all compute that v needs,  max over u that must have finished before v of
                                                start(u) + time(u) + c(u -> v) )

    step >= (a) all compute
            (b) start(v) + time(v) + all compute that needs v finished
            (c) per group: its earliest start + all its time + the least compute after any of it
            (d) all compute + what the collectives of one group take from it (0 without contention)
            (e) under contention: more than (b), by :mod:`overlap_sched.judge.contended_bound`

Where a group has several lanes (:mod:`overlap_sched.problem.contention`), (c) counts crowding / lanes of all its time,
and (d) and (e) are left out: they know of one collective at a time.

"Finished" means that a wait of u lies between: a node that merely needs u launched does not wait for it.
Groups that share a link do its work at its rate at most, like one group: (c) and (d) then hold per link. While a
collective of a factor s is in flight, compute does at most 1 / s of its work, so it takes at least 1 - 1/s of that time
from compute; start(v) and what is behind are those without contention, which only makes them later. The chain of (e) is
what (b) adds up: compute, and the collectives on the way to v. Of a collective that goes faster beside compute the
shorter time counts (:mod:`overlap_sched.judge.bound_terms`).

One reachability bit set per side (Python integers, one bit per collective) and one matrix product over the
nodes that take time: well under a second for ten thousand nodes. Above ``EXACT_NODES`` nodes the bound is the
approximation of :mod:`overlap_sched.judge.lower_bound_windows`: true as well, but it may be smaller.
"""

import numpy as np

from overlap_sched.judge.bound_terms import compute_us, reachability, unpack, with_least_times
from overlap_sched.judge.contended_bound import Chain, losses
from overlap_sched.judge.lower_bound_windows import windowed_bound_us
from overlap_sched.problem import Problem

EXACT_NODES = 16_384
"""Graphs of at most this many nodes have the exact bound."""

_ROWS = 2048  # nodes per block of the matrix product: bounds its memory at 2 * _ROWS * collectives doubles


def lower_bound_us(problem: Problem) -> float:
    """The bound on the step, in microseconds; approximate above :data:`EXACT_NODES` nodes."""
    problem = with_least_times(problem)
    nodes, collectives = problem.nodes, problem.collectives
    if len(nodes) > EXACT_NODES:
        return windowed_bound_us(problem)
    us = compute_us(problem)
    busy = [v for v, time_us in enumerate(us) if time_us > 0]
    busy_us = np.array([us[v] for v in busy])
    bounds = [float(busy_us.sum())]
    if not collectives:
        return bounds[0]

    finished, needed_by = reachability(problem, collectives)
    count = len(collectives)
    comm_us = np.array([nodes[v].time_us for v in collectives])
    slowdown = np.array([problem.contention.least_slowdown_of(nodes[v].op) for v in collectives])
    ahead_us, behind_us = np.zeros(count), np.zeros(count)
    between = np.zeros((count, count))  # [u, v]: c(u -> v)
    for low in range(0, len(busy), _ROWS):
        rows, rows_us = busy[low : low + _ROWS], busy_us[low : low + _ROWS]
        after = unpack([finished[v] for v in rows], count) * rows_us[:, None]
        before = unpack([needed_by[v] for v in rows], count)
        ahead_us += rows_us @ before
        behind_us += after.sum(axis=0)
        between += after.T @ before

    start = ahead_us
    sent_us, beside_us = comm_us.copy(), comm_us / slowdown  # of v and of what start(v) adds up
    for k, v in enumerate(collectives):
        earlier = np.flatnonzero(unpack([finished[v]], count)[0])
        if len(earlier):
            reached = start[earlier] + comm_us[earlier] + between[earlier, k]
            u = earlier[reached.argmax()]
            if reached.max() > start[k]:
                start[k] = float(reached.max())
                sent_us[k] += sent_us[u]
                beside_us[k] += beside_us[u]
    ends = start + comm_us + behind_us
    bounds.append(float(ends.max()))
    contention = problem.contention
    if contention and contention.lanes == 1:
        lost = losses(problem)
        chains = zip(ends - sent_us, sent_us, beside_us, strict=True)
        bounds.append(max(lost.step_us(Chain(*map(float, chain))) for chain in chains))
    lost_us = (1 - 1 / slowdown) * comm_us
    link = [contention.link_of(nodes[v].group) for v in collectives]
    for name in sorted(set(link)):
        mine = np.array([other == name for other in link])
        together_us = comm_us[mine].sum() * contention.crowding / contention.lanes
        bounds.append(float(start[mine].min() + together_us + behind_us[mine].min()))
        if contention.lanes == 1:
            bounds.append(bounds[0] + float(lost_us[mine].sum()))
    return max(bounds)
