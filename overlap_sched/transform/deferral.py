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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.simulate.ledger import LiveRanges

_GRAIN = 0.004
"""Compute of less than this part of the tail is not worth a move."""
_MOST_NODES = 16
"""A job has at most so many nodes: weight gradients are needed by few."""
_MOST_JOBS = 256
"""So many jobs are looked at."""


@dataclass(frozen=True)
class Job:
    """Compute with all that needs it; microseconds of its collectives behind the last launch, and beside it."""

    nodes: frozenset[int]
    compute_us: float
    comm_us: float
    beside_us: Mapping[str | None, float]

    @property
    def longest_us(self) -> float:
        """The longest time of its collectives, on one stream."""
        return max([self.comm_us, *self.beside_us.values()])


def admitted(
    live_ranges: LiveRanges,
    order: Order,
    limit: npt.NDArray[np.int64],
    last: int,
    tail_us: float,
    added_us: Callable[[int], float],
) -> list[Job]:
    """Jobs that hide what follows a launch, the best first, with memory for them from where they are to the end."""
    nodes, maker = live_ranges.problem.nodes, live_ranges.problem.maker
    position = dict(zip(order, range(len(order)), strict=True))
    room = limit - live_ranges.profile(order)
    taken: set[int] = set()  # nodes of jobs so far
    kept: set[int] = set()  # and the storages that they keep alive until the end
    jobs: list[Job] = []
    hidden_us = 0.0
    beside_us: dict[str | None, float] = {}
    for job in _candidates(live_ranges.problem, order, position, last, tail_us, added_us):
        if hidden_us >= tail_us:
            break
        if job.nodes & taken or any(beside_us.get(g, 0.0) + us > tail_us for g, us in job.beside_us.items()):
            continue
        keeps = {
            s for v in job.nodes for s in nodes[v].use if live_ranges.freed_size[s] and maker[s] not in job.nodes
        } - kept
        held = np.zeros_like(room)
        for s in keeps:
            held[max(position[v] for v in live_ranges.users[s]) + 1 :] += live_ranges.freed_size[s]
        if (held <= room).all():
            room -= held
            taken |= job.nodes
            kept |= keeps
            jobs.append(job)
            hidden_us += job.compute_us - job.comm_us
            for group, us in job.beside_us.items():
                beside_us[group] = beside_us.get(group, 0.0) + us
    return jobs


def _candidates(
    problem: Problem,
    order: Order,
    position: dict[int, int],
    last: int,
    tail_us: float,
    added_us: Callable[[int], float],
) -> list[Job]:
    """Jobs whose compute is longer than their communication: those that hide most of it first, the later first."""
    found: list[tuple[float, int, Job]] = []
    for at, v in enumerate(order[:last]):
        if problem.nodes[v].kind is not Kind.COMPUTE:
            continue
        job = _job(problem, v, problem.nodes[order[last]].group, added_us)
        if job is None or order[last] in job.nodes or job.compute_us <= max(job.comm_us, _GRAIN * tail_us):
            continue
        before = max(
            (position[u] for w in job.nodes for u in problem.predecessors[w] if u not in job.nodes), default=-1
        )
        after = min((position[u] for w in job.nodes for u in problem.successors[w] if u not in job.nodes), default=last)
        if before < last <= after:
            found.append((job.longest_us / job.compute_us, -at, job))
    found.sort(key=lambda candidate: candidate[:2])
    return [job for *_, job in found[:_MOST_JOBS]]


def _job(problem: Problem, v: int, last_group: str | None, added_us: Callable[[int], float]) -> Job | None:
    """Node v and all that needs it but the output; ``None`` where that is much."""
    nodes, todo = {v}, [v]
    while todo:
        for w in problem.successors[todo.pop()]:
            if w not in nodes and problem.nodes[w].kind is not Kind.OUTPUT:
                nodes.add(w)
                todo.append(w)
        if len(nodes) > _MOST_NODES:
            return None
    compute_us = sum(problem.nodes[w].time_us for w in nodes if problem.nodes[w].kind is Kind.COMPUTE)
    beside_us: dict[str | None, float] = {}
    for w in nodes:
        if problem.nodes[w].kind is Kind.COLLECTIVE:
            group = problem.nodes[w].group
            beside_us[group] = beside_us.get(group, 0.0) + added_us(w)
    return Job(frozenset(nodes), compute_us, beside_us.pop(last_group, 0.0), beside_us)


def _johnson(job: Job) -> tuple[int, float]:
    """First those whose communication is longer, the shortest compute first; then the longest communication first."""
    return (0, job.compute_us) if job.longest_us > job.compute_us else (1, -job.longest_us)


def with_deferred(problem: Problem, order: Order, last: int, jobs: Sequence[Job]) -> Order:
    """The order with jobs behind its last launch, in Johnson's order; what waits for them behind all of them."""
    moved = {v for job in jobs for v in job.nodes}
    launched: list[int] = []
    completed: set[int] = set()
    for job in sorted(jobs, key=_johnson):
        for v in sorted(job.nodes):
            waits = problem.nodes[v].kind is Kind.WAIT or any(u in completed for u in problem.predecessors[v])
            if waits:
                completed.add(v)
            else:
                launched.append(v)
    head = [v for v in order[: last + 1] if v not in moved]
    rest = [v for v in order[last + 1 :] if v not in moved]
    outputs = [v for v in rest if problem.nodes[v].kind is Kind.OUTPUT]
    others = [v for v in rest if problem.nodes[v].kind is not Kind.OUTPUT]
    return (*head, *launched, *others, *sorted(completed), *outputs)
