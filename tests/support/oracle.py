"""Slow and simple truths to hold the code against; nothing here is shared with what is tested."""

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
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
        maker = next((v for v, node in enumerate(problem.nodes) if s in node.alloc), None)
        if maker is None:
            continue
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
    """Step time: when the compute stream comes to each position, and when each launch has finished on its stream."""
    nodes = [problem.nodes[v] for v in order]
    position = {v: at for at, v in enumerate(order)}

    @cache
    def start(at: int) -> float:
        awaited = nodes[at].collective
        return max(computed(at - 1) if at else 0.0, 0.0 if awaited is None else finish(position[awaited]))

    def computed(at: int) -> float:  # launches and waits stand in the compute stream too, with length 0
        return start(at) + (0.0 if nodes[at].kind in (Kind.COLLECTIVE, Kind.WAIT) else nodes[at].time_us)

    @cache
    def finish(at: int) -> float:
        stream = [u for u in range(at) if nodes[u].kind is Kind.COLLECTIVE and nodes[u].group == nodes[at].group]
        return max(start(at), finish(stream[-1]) if stream else 0.0) + nodes[at].time_us

    return max(finish(at) if node.kind is Kind.COLLECTIVE else computed(at) for at, node in enumerate(nodes))
