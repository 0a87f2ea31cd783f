"""The end of a step: compute put off until nothing is left to hide the last collectives behind.

When all compute is done, the last collectives still take their time. A weight gradient that has been computed long
before, and takes longer than its own reduce_scatter, hides a part of it::

    compute       |= wgrad =|===== chain =====|            all before the last launch starts sooner, the end comes
    group stream     |= u =|                  |=== v ===|  sooner by the compute put off, less what its own
                                                           collective takes behind the others
    compute       |===== chain =====|= wgrad =|
    group stream                    |=== v ===|= u =|

Two machines in a row: of jobs of compute, then communication, those come last whose communication is shortest
(S. M. Johnson, *Optimal two- and three-stage production schedules*, 1954). A job is put off with all that needs it and
keeps what it uses alive until the end; as many as memory admits, those first that hide most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, Order, Problem

_WORTH = 1e-4
"""A tail is left as it is below this part of the step."""
_GRAIN = 0.004
"""Compute of less than this part of the tail is not worth a move."""
_MOST_NODES = 16
"""A job has at most so many nodes: weight gradients are needed by few."""
_MOST_JOBS = 256
"""So many jobs are looked at."""
_TRIES, _ENOUGH = 2, 0.8
"""So many orders are tried, with ever fewer jobs put off, until one gains this part of what was hoped for."""


@dataclass(frozen=True)
class _Job:
    """Compute with all that needs it; times in microseconds."""

    nodes: frozenset[int]
    compute_us: float
    comm_us: float


def shorter_tail(
    lives: LiveRanges, order: Order, limit: npt.NDArray[np.int64], finished: Callable[[Order], Order]
) -> tuple[Order, frozenset[int]]:
    """The finished order, with compute moved behind its last launch before it was finished if the step is shorter so.

    Args:
        lives: Of the problem that the order is of, which has no contention.
        order: A valid order within the budget.
        limit: Budget in bytes, a scalar or one value per position.
        finished: What is done to an order behind this: it stays within the budget, and never makes a step longer.

    Returns:
        The order, and the nodes that were put off.
    """
    problem, best, put_off = lives.problem, finished(order), frozenset[int]()
    if not problem.collectives:
        return best, put_off
    timeline = replay(problem, best)
    last, tail_us = _last_launch(problem, order), _tail_us(problem, best, timeline)
    if tail_us < _WORTH * timeline.step_us:
        return best, put_off
    jobs, shortest_us = _admitted(lives, order, limit, last, tail_us), timeline.step_us
    for _ in range(_TRIES):
        hoped_us = min(tail_us, sum(job.compute_us for job in jobs)) - sum(job.comm_us for job in jobs)
        if hoped_us < _WORTH * timeline.step_us:
            break
        moved = _put_off(problem, order, last, jobs)
        if bool((lives.profile(moved) <= limit).all()):
            moved = finished(moved)
            step_us = replay(problem, moved).step_us
            if step_us >= shortest_us and put_off:
                break  # fewer are no better
            if step_us < shortest_us:
                best, shortest_us, put_off = moved, step_us, frozenset(v for job in jobs for v in job.nodes)
            if timeline.step_us - shortest_us >= _ENOUGH * hoped_us:
                break
        jobs = jobs[: len(jobs) // 2]
    return best, put_off


def _last_launch(problem: Problem, order: Order) -> int:
    """The position of the last collective."""
    return max(at for at, v in enumerate(order) if problem.nodes[v].kind is Kind.COLLECTIVE)


def _tail_us(problem: Problem, order: Order, timeline: Replay) -> float:
    """How much later the step ends than its compute would if nothing stood still behind the last launch."""
    last = _last_launch(problem, order)
    left_us = sum(problem.nodes[v].time_us for v in order[last:] if problem.nodes[v].kind is Kind.COMPUTE)
    return timeline.step_us - timeline.at_us[order[last]] - left_us


def _admitted(lives: LiveRanges, order: Order, limit: npt.NDArray[np.int64], last: int, tail_us: float) -> list[_Job]:
    """Jobs that hide the tail, the best first, for which there is memory from where they are to the end."""
    nodes, maker = lives.problem.nodes, lives.problem.allocator
    position = dict(zip(order, range(len(order)), strict=True))
    room = limit - lives.profile(order)
    taken: set[int] = set()  # nodes of jobs so far
    kept: set[int] = set()  # and the storages that they keep alive until the end
    jobs: list[_Job] = []
    hidden_us = 0.0
    for job in _candidates(lives.problem, order, position, last, tail_us):
        if hidden_us >= tail_us:
            break
        if job.nodes & taken:
            continue
        keeps = {s for v in job.nodes for s in nodes[v].use if lives.freed_size[s] and maker[s] not in job.nodes} - kept
        held = np.zeros_like(room)
        for s in keeps:
            held[max(position[v] for v in lives.users[s]) + 1 :] += lives.freed_size[s]
        if (held <= room).all():
            room -= held
            taken |= job.nodes
            kept |= keeps
            jobs.append(job)
            hidden_us += job.compute_us - job.comm_us
    return jobs


def _candidates(problem: Problem, order: Order, position: dict[int, int], last: int, tail_us: float) -> list[_Job]:
    """Jobs whose compute is longer than their communication: those that hide most of it first, the later first."""
    found: list[tuple[float, int, _Job]] = []
    for at, v in enumerate(order[:last]):
        if problem.nodes[v].kind is not Kind.COMPUTE or problem.nodes[v].time_us < _GRAIN * tail_us:
            continue  # of a tail of no length, what takes no time falls out as a job that hides nothing
        job = _job(problem, v)
        if job is None or order[last] in job.nodes or job.comm_us >= job.compute_us:
            continue
        before = max(
            (position[u] for w in job.nodes for u in problem.predecessors[w] if u not in job.nodes), default=-1
        )
        after = min((position[u] for w in job.nodes for u in problem.successors[w] if u not in job.nodes), default=last)
        if before < last <= after:
            found.append((job.comm_us / job.compute_us, -at, job))
    found.sort(key=lambda candidate: candidate[:2])
    return [job for _, _, job in found[:_MOST_JOBS]]


def _job(problem: Problem, v: int) -> _Job | None:
    """Node v and all that needs it but the output; ``None`` where that is much."""
    nodes, todo = {v}, [v]
    while todo:
        for w in problem.successors[todo.pop()]:
            if w not in nodes and problem.nodes[w].kind is not Kind.OUTPUT:
                nodes.add(w)
                todo.append(w)
        if len(nodes) > _MOST_NODES:
            return None
    times = [(problem.nodes[w].kind, problem.nodes[w].time_us) for w in nodes]
    comm_us = sum(us for kind, us in times if kind is Kind.COLLECTIVE)
    return _Job(frozenset(nodes), sum(us for kind, us in times if kind is Kind.COMPUTE), comm_us)


def _put_off(problem: Problem, order: Order, last: int, jobs: Sequence[_Job]) -> Order:
    """The order with jobs behind its last launch, short communication last; what waits for it behind all of them."""
    moved = {v for job in jobs for v in job.nodes}
    launched: list[int] = []
    landed: set[int] = set()
    for job in sorted(jobs, key=lambda job: -job.comm_us):
        for v in sorted(job.nodes):
            waits = problem.nodes[v].kind is Kind.WAIT or any(u in landed for u in problem.predecessors[v])
            if waits:
                landed.add(v)
            else:
                launched.append(v)
    head = [v for v in order[: last + 1] if v not in moved]
    rest = [v for v in order[last + 1 :] if v not in moved]
    outputs = [v for v in rest if problem.nodes[v].kind is Kind.OUTPUT]
    others = [v for v in rest if problem.nodes[v].kind is not Kind.OUTPUT]
    return (*head, *launched, *others, *sorted(landed), *outputs)
