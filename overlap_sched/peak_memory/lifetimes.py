"""When each storage lives in an order: what address planners and allocators need to know."""

from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.problem import Kind, Problem


class Lifetime(NamedTuple):
    """One storage: live from step ``first`` to step ``last`` of the order, both included."""

    storage: int
    bytes: int
    first: int
    last: int


def lifetimes(problem: Problem, order: Sequence[int]) -> list[Lifetime]:
    """One per storage that is ever allocated, by storage id; by the rules of :mod:`overlap_sched.judge.liveness`.

    What is live from the start has ``first == 0``, what stays to the end ``last == len(order) - 1``.
    """
    first: dict[int, int] = {}
    last_use: dict[int, int] = {}
    stays: set[int] = set()  # even if nothing uses it
    for at, v in enumerate(order):
        node = problem.nodes[v]
        for s in node.alloc:
            first[s] = 0 if node.kind is Kind.INPUT else at
            if node.kind in (Kind.INPUT, Kind.OUTPUT):
                stays.add(s)
        for s in node.use:
            last_use[s] = at
    end = len(order) - 1
    found = []
    for s in sorted(first):
        size, pinned = problem.storages[s]
        to_the_end = pinned if s in last_use else s in stays
        last = end if to_the_end else last_use.get(s, first[s])
        found.append(Lifetime(s, size, first[s], last))
    return found
