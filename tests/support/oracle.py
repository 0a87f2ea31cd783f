"""Slow and simple truths to hold the code against; nothing here is shared with what is tested."""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from overlap_sched.problem import Kind, Problem

INSTANCES = Path(__file__).resolve().parents[2] / "scripts" / "instances"
JUDGE = Path(__file__).resolve().parents[3] / "shared" / "tools" / "judge.py"  # an independent one, where it is at hand


def rules(problem: Problem) -> list[set[int]]:
    """Per node, what must run before it, from the node's fields alone."""
    maker = {s: v for v, node in enumerate(problem.nodes) for s in node.alloc}
    before = []
    for v, node in enumerate(problem.nodes):
        need = set(node.deps) | {maker[s] for s in node.use}
        if node.collective is not None:
            need.add(node.collective)
        if node.kind is Kind.OUTPUT:
            need |= set(range(v))
        before.append(need - {v})
    return before


def all_orders(problem: Problem) -> Iterator[list[int]]:
    """Every valid order (few nodes only)."""
    before, n = rules(problem), len(problem.nodes)

    def extend(order: list[int], done: frozenset[int]) -> Iterator[list[int]]:
        if len(order) == n:
            yield list(order)
        for v in range(n):
            if v not in done and before[v] <= done:
                yield from extend([*order, v], done | {v})

    return extend([], frozenset())


def random_order(problem: Problem, seed: int, pairs: Iterable[tuple[int, int]] = ()) -> list[int]:
    """One valid order that keeps the pairs: of the ready nodes any, with a liking for the oldest or the newest."""
    draw = random.Random(seed)
    before = [set(need) for need in rules(problem)]
    for u, v in pairs:
        before[v].add(u)
    after: list[list[int]] = [[] for _ in before]
    left = [len(need) for need in before]
    for v, need in enumerate(before):
        for u in need:
            after[u].append(v)
    ready = [v for v, count in enumerate(left) if count == 0]
    order = []
    liking = draw.random()
    while ready:
        k = draw.randrange(len(ready)) if draw.random() < liking else draw.choice((0, -1))
        v = ready.pop(k)
        order.append(v)
        for w in after[v]:
            left[w] -= 1
            if left[w] == 0:
                ready.append(w)
    return order


def peak_by_definition(problem: Problem, order: list[int]) -> list[int]:
    """Bytes live at each position, storage by storage, from the words of the definition."""
    position = {v: at for at, v in enumerate(order)}
    live = [0] * len(order)
    for s, (size, pinned) in enumerate(problem.storages):
        makers = [v for v, node in enumerate(problem.nodes) if s in node.alloc]
        if not makers:
            continue
        (maker,) = makers
        kind = problem.nodes[maker].kind
        uses = [position[v] for v, node in enumerate(problem.nodes) if s in node.use]
        first = 0 if kind is Kind.INPUT else position[maker]
        if uses:
            last = len(order) - 1 if pinned else max(uses)
        else:
            last = len(order) - 1 if kind in (Kind.INPUT, Kind.OUTPUT) else first
        for at in range(first, last + 1):
            live[at] += size
    return live


def step_by_definition(problem: Problem, order: Sequence[int]) -> float:
    """Step time by fixed point: every node's start from what must have ended, again and again until nothing moves."""
    start = dict.fromkeys(order, 0.0)
    nodes = problem.nodes
    compute_stream = list(order)  # launches and waits stand in it too, with length 0

    def end_on_compute(v: int) -> float:
        node = nodes[v]
        return start[v] + (0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us)

    def end_on_stream(v: int) -> float:
        queue = [u for u in order if nodes[u].kind is Kind.COLLECTIVE and nodes[u].group == nodes[v].group]
        free = 0.0
        for u in queue:
            free = max(free, start[u]) + nodes[u].time_us
            if u == v:
                return free
        raise AssertionError

    moved = True
    while moved:
        moved = False
        for at, v in enumerate(compute_stream):
            earliest = end_on_compute(compute_stream[at - 1]) if at else 0.0
            collective = nodes[v].collective
            if collective is not None:
                earliest = max(earliest, end_on_stream(collective))
            if earliest > start[v]:
                start[v], moved = earliest, True
    ends = [end_on_compute(v) for v in order]
    ends += [end_on_stream(v) for v in order if nodes[v].kind is Kind.COLLECTIVE]
    return max(ends)
