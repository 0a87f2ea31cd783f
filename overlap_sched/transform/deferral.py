"""The end of a step: compute deferred until nothing is left to hide the last collectives behind.

When all compute is done, the last collectives still take their time. A weight gradient that has been computed long
before, and takes longer than its own reduce_scatter, hides a part of it::

    compute       |= wgrad =|===== chain =====|            all before the last launch starts sooner, the end comes
    group stream     |= u =|                  |=== v ===|  sooner by the compute deferred, less what its own
                                                           collective takes behind the others
    compute       |===== chain =====|= wgrad =|
    group stream                    |=== v ===|= u =|

Two machines in a row: of jobs of compute, then communication, those come last whose communication is shortest
(S. M. Johnson, *Optimal two- and three-stage production schedules*, 1954). Collectives of other streams run beside the
last launch and add nothing to the end, as long as all of a stream are done by then. A job is deferred with all that
needs it and keeps what it uses alive until the end; as many as memory admits, those first that hide most.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.precedence import positions
from overlap_sched.simulate.ledger import LiveRanges

_GRAIN = 0.004
"""Compute of less than this part of the tail is not worth a move."""
_MOST_NODES = 16
"""A job has at most so many nodes: weight gradients are needed by few."""
_MOST_JOBS = 256
"""So many jobs are looked at."""


@dataclass(frozen=True)
class Job:
    """Compute with all that needs it; microseconds of its collectives, per group."""

    nodes: frozenset[NodeId]
    compute_us: float
    comm_us: Mapping[str | None, float]

    @property
    def rank(self) -> tuple[int, float]:
        """Johnson's: first those whose communication is longer, the shortest compute first; then the longest first."""
        longest_us = max(self.comm_us.values(), default=0.0)
        return (0, self.compute_us) if longest_us > self.compute_us else (1, -longest_us)


def defer_compute(
    live_ranges: LiveRanges, order: Order, budget_bytes: int, tail_us: float, added_us: Callable[[NodeId], float]
) -> tuple[Order, frozenset[NodeId]]:
    """Return an order with compute deferred behind its last launch, and the collectives deferred with it.

    Its own step may be longer: it is made for somebody who will put those collectives together.

    Args:
        live_ranges: Of the problem.
        order: A valid order with collectives, within the budget.
        budget_bytes: What the peak may be; the order made keeps to it.
        tail_us: How much is to be hidden.
        added_us: By collective, what it adds to the end: of one that goes together with others, less than its time.
    """
    problem, position = live_ranges.problem, positions(order)
    last = max(position[v] for v in problem.collectives)
    last_group, room = problem.nodes[order[last]].group, budget_bytes - live_ranges.profile(order)
    moved, kept, jobs, hidden_us = set[NodeId](), set[int](), list[Job](), 0.0
    beside_us = defaultdict[str | None, float](float)
    for job in _candidates(problem, order, last, tail_us, added_us):
        if hidden_us >= tail_us:
            break
        beside = {group: us for group, us in job.comm_us.items() if group != last_group}
        if job.nodes & moved or any(beside_us[group] + us > tail_us for group, us in beside.items()):
            continue
        uses = {s for v in job.nodes for s in problem.nodes[v].use if live_ranges.freed_size[s]}
        keeps = {s for s in uses - kept if problem.maker[s] not in job.nodes}
        held = np.zeros_like(room)
        for s in keeps:
            held[max(position[v] for v in live_ranges.users[s]) + 1 :] += live_ranges.freed_size[s]
        if (held <= room).all():
            room -= held
            moved |= job.nodes
            kept |= keeps
            jobs.append(job)
            hidden_us += job.compute_us - job.comm_us.get(last_group, 0.0)
            for group, us in beside.items():
                beside_us[group] += us
    made = _place_behind(problem, order, last, jobs, moved)
    if not jobs or int(live_ranges.profile(made).max()) > budget_bytes:
        return order, frozenset()
    return made, frozenset(moved.intersection(problem.collectives))


def _candidates(
    problem: Problem, order: Order, last: int, tail_us: float, added_us: Callable[[NodeId], float]
) -> list[Job]:
    """Jobs whose compute is longer than their communication: those that hide most of it first, the later first."""
    found: list[Job] = []
    position, last_group = positions(order), problem.nodes[order[last]].group
    for v in reversed(order[:last]):
        job = _job(problem, v, added_us) if problem.nodes[v].kind is Kind.COMPUTE else None
        if job is None or job.compute_us <= max(job.comm_us.get(last_group, 0.0), _GRAIN * tail_us):
            continue
        before = {u for w in job.nodes for u in problem.predecessors[w]} - job.nodes
        after = {u for w in job.nodes for u in problem.successors[w]} - job.nodes
        apart = all(position[u] < last for u in before) and all(position[u] >= last for u in after)
        if apart and order[last] not in job.nodes:
            found.append(job)
    return sorted(found, key=lambda job: max(job.comm_us.values(), default=0.0) / job.compute_us)[:_MOST_JOBS]


def _job(problem: Problem, v: NodeId, added_us: Callable[[NodeId], float]) -> Job | None:
    """Node v and all that needs it but the output; ``None`` where that is much."""
    nodes, found, todo = problem.nodes, {v}, [v]
    while todo:
        more = {w for w in problem.successors[todo.pop()] if w not in found and nodes[w].kind is not Kind.OUTPUT}
        found |= more
        todo += more
        if len(found) > _MOST_NODES:
            return None
    comm_us = defaultdict[str | None, float](float)
    for w in sorted(found):
        if nodes[w].kind is Kind.COLLECTIVE:
            comm_us[nodes[w].group] += added_us(w)
    compute_us = sum(nodes[w].time_us for w in sorted(found) if nodes[w].kind is Kind.COMPUTE)
    return Job(frozenset(found), compute_us, comm_us)


def _place_behind(problem: Problem, order: Order, last: int, jobs: list[Job], moved: set[NodeId]) -> Order:
    """Place jobs behind the last launch, in Johnson's order; what waits for them behind all of them."""
    launched: list[NodeId] = []
    completed: set[NodeId] = set()
    for job in sorted(jobs, key=lambda job: job.rank):
        for v in sorted(job.nodes):
            if problem.nodes[v].kind is Kind.WAIT or any(u in completed for u in problem.predecessors[v]):
                completed.add(v)
            else:
                launched.append(v)
    head, rest = ([v for v in part if v not in moved] for part in (order[: last + 1], order[last + 1 :]))
    others, outputs = ([v for v in rest if (problem.nodes[v].kind is Kind.OUTPUT) is last] for last in (False, True))
    return (*head, *launched, *others, *sorted(completed), *outputs)
