"""The shortest step within a memory budget, by search over the sets of nodes that have run.

What is live after some nodes have run does not depend on their order: only on the set. Neither does what may run
next. So an order is a path of sets, from none to all, along edges that fit the budget; what the path adds is time: the
clock, when each stream is free, when each collective in flight ends. Of two paths to one set, one that is no later in
all of these is as good as the other everywhere after. The search (A*, Hart, Nilsson and Raphael 1968) takes the path with the least
lower bound first, so the first one that is complete is the best.

Shares nothing with the scheduler, nor with the judges: it reads the fields of the nodes.
"""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.problem import Kind, Problem

MOST_STATES = 2_000_000
"""Paths kept, at most, before the search gives up: counted, so that every machine solves the same graphs."""


class Exact(NamedTuple):
    """The optimum.

    Attributes:
        step_us: No valid order within the budget is shorter.
        order: One that is as short.
        states: Paths kept: the work done.
    """

    step_us: float
    order: tuple[int, ...]
    states: int


class TooLargeError(Exception):
    """More than ``MOST_STATES`` paths."""


@dataclass(frozen=True)
class _Facts:
    """The graph as bit sets; node ids are bits."""

    need: list[int]  # per node, what must have run
    takes: list[int]  # per node, bytes that its step brings
    makes: list[int]  # per node, bytes of it that outlive the step
    users: list[list[tuple[int, int]]]  # per node, (all users, bytes) of each storage that it uses and that can die
    tail_us: list[float]  # per node, the longest path from its start to the end
    inputs_bytes: int


def shortest_step(problem: Problem, limit_bytes: int) -> Exact | None:
    """The optimum over all valid orders that never have more than ``limit_bytes`` live; ``None``: there is none.

    Raises:
        TooLargeError: The search was given up.
    """
    nodes, facts = problem.nodes, _facts(problem)
    everything = (1 << len(nodes)) - 1
    groups = sorted({node.group for node in nodes if node.group is not None})
    stream = [groups.index(node.group) if node.group is not None else -1 for node in nodes]
    launch = [node.kind is Kind.COLLECTIVE for node in nodes]
    wait_of = [node.collective for node in nodes]
    waits = {v: sum(1 << w for w, of in enumerate(wait_of) if of == v) for v in range(len(nodes)) if launch[v]}
    times = [node.time_us for node in nodes]
    computes = [0.0 if launch[v] or node.kind is Kind.WAIT else times[v] for v, node in enumerate(nodes)]

    # a path: (clock, when streams are free, ends of those in flight); of the set: its live bytes
    Path = tuple[float, tuple[float, ...], tuple[tuple[int, float], ...]]
    best: dict[int, list[Path]] = {}
    live_of = {0: facts.inputs_bytes}
    left_of: dict[int, tuple[float, list[float], list[int]]] = {}
    states = 0

    def left(done: int) -> tuple[float, list[float], list[int]]:
        """Compute still to do, time still to do per stream, and the open nodes that may run next."""
        if done not in left_of:
            still, per_stream, ready = 0.0, [0.0] * len(groups), []
            for v in range(len(nodes)):
                if not done >> v & 1:
                    still += computes[v]
                    if launch[v]:
                        per_stream[stream[v]] += times[v]
                    if not facts.need[v] & ~done:
                        ready.append(v)
            left_of[done] = (still, per_stream, ready)
        return left_of[done]

    def bound(done: int, path: Path) -> float:
        clock, free, flying = path
        still, per_stream, ready = left(done)
        least = clock + still
        for k, us in enumerate(per_stream):
            least = max(least, free[k] + us)
        for v in ready:
            begin = clock
            if launch[v]:
                begin = free[stream[v]]
            elif wait_of[v] is not None:
                begin = max([clock, *(end for u, end in flying if u == wait_of[v])])
            least = max(least, begin + facts.tail_us[v])
        return least

    def after(v: int, done: int, path: Path) -> Path:
        clock, free, flying = path
        if launch[v]:
            end = free[stream[v]] + times[v]
            free = (*free[: stream[v]], end, *free[stream[v] + 1 :])
            flying = tuple(sorted((*flying, (v, end))))
        elif nodes[v].kind is Kind.WAIT:
            clock = max([clock, *(end for u, end in flying if u == wait_of[v])])
        else:
            clock += times[v]
        now = done | 1 << v
        # an end in the past is as good as one now, and nobody asks for one whose waits have all run
        flying = tuple((u, max(end, clock)) for u, end in flying if waits[u] & ~now)
        return clock, tuple(max(end, clock) for end in free), flying

    def no_later(a: Path, b: Path) -> bool:
        return (
            a[0] <= b[0]
            and all(x <= y for x, y in zip(a[1], b[1], strict=True))
            and all(x[1] <= y[1] for x, y in zip(a[2], b[2], strict=True))
        )

    start: Path = (0.0, (0.0,) * len(groups), ())
    # (lower bound, - nodes run, tie, set, path, order as a linked list)
    queue: list[tuple[float, int, int, int, Path, tuple]] = [(bound(0, start), 0, 0, 0, start, ())]
    best[0] = [start]
    while queue:
        least, _, _, done, path, trail = heapq.heappop(queue)
        if done == everything:
            return Exact(least, _unwound(trail), states)
        if path not in best[done]:
            continue  # a better one to this set has come since
        live = live_of[done]
        ready = left(done)[2]
        fits = [v for v in ready if live + facts.takes[v] <= limit_bytes]
        # what takes neither time nor memory now may as well run now: it only lets go
        free_of_charge = [
            v for v in fits if facts.takes[v] == 0 and not launch[v] and after(v, done, path)[0] == path[0]
        ]
        for v in free_of_charge[:1] or fits:
            now, then = done | 1 << v, after(v, done, path)
            if now not in live_of:
                freed = sum(size for users, size in facts.users[v] if not users & ~now)
                live_of[now] = live + facts.makes[v] - freed
            others = best.setdefault(now, [])
            if any(no_later(other, then) for other in others):
                continue
            best[now] = [other for other in others if not no_later(then, other)] + [then]
            states += 1
            if states > MOST_STATES:
                raise TooLargeError(f"{problem.name}: more than {MOST_STATES:,} paths")
            heapq.heappush(queue, (max(least, bound(now, then)), -now.bit_count(), states, now, then, (trail, v)))
    return None


def _unwound(trail: tuple) -> tuple[int, ...]:
    order = []
    while trail:
        trail, v = trail
        order.append(v)
    return tuple(reversed(order))


def _facts(problem: Problem) -> _Facts:
    """Everything about the graph, from the nodes' own fields."""
    nodes, storages = problem.nodes, problem.storages
    maker, users = [0] * len(storages), [0] * len(storages)
    for v, node in enumerate(nodes):
        for s in node.alloc:
            maker[s] = v
        for s in node.use:
            users[s] |= 1 << v
    need, takes, makes, dying = [], [], [], []
    inputs_bytes = 0
    for v, node in enumerate(nodes):
        before = (1 << v) - 1 if node.kind is Kind.OUTPUT else 0
        for u in (*node.deps, *(maker[s] for s in node.use), *(() if node.collective is None else (node.collective,))):
            before |= 1 << u
        need.append(before & ~(1 << v))
        brought = sum(storages[s].bytes for s in node.alloc)
        if node.kind is Kind.INPUT:  # there from the start
            inputs_bytes += brought
            takes.append(0)
            makes.append(0)
        else:
            takes.append(brought)
            stays = node.kind is Kind.OUTPUT
            makes.append(sum(storages[s].bytes for s in node.alloc if stays or users[s]))
        dying.append([(users[s], storages[s].bytes) for s in set(node.use) if not storages[s].pinned])
    return _Facts(need, takes, makes, dying, _tails(problem, need), inputs_bytes)


def _tails(problem: Problem, need: list[int]) -> list[float]:
    """Longest paths: a wait ends after its collective, others after they begin plus, for compute, their time."""
    nodes = problem.nodes
    tails = [0.0] * len(nodes)
    for v in range(len(nodes) - 1, -1, -1):
        node = nodes[v]
        after = 0.0 if node.kind is Kind.WAIT else node.time_us
        for w in range(v + 1, len(nodes)):
            if need[w] >> v & 1:
                us = 0.0 if node.kind is Kind.WAIT or (node.kind is Kind.COLLECTIVE and nodes[w].collective != v) else node.time_us
                after = max(after, us + tails[w])
        tails[v] = after
    return tails
