"""A step under contention in exact fractions, from the words of the model; shares nothing with what is tested.

At every moment: what could make progress is found anew from what is finished, and how fast it is from that.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from overlap_sched.problem import Kind, Problem


class Exact(NamedTuple):
    """Step, standstill at waits, and when each node was finished."""

    step_us: Fraction
    exposed_us: Fraction
    finish_us: dict[int, Fraction]


def contended_step(problem: Problem, order: Sequence[int]) -> Exact:
    nodes = problem.nodes
    now = exposed = Fraction(0)
    left = {v: Fraction(0 if node.kind is Kind.WAIT else node.time_us) for v, node in enumerate(nodes)}
    finish: dict[int, Fraction] = {}
    launched: list[int] = []
    at = 0
    while True:
        moved = True
        while moved:  # all that happens at this very moment
            moved = False
            for v in in_flight(problem, launched, finish):
                if left[v] == 0:
                    finish[v], moved = now, True
            if at < len(order):
                v = order[at]
                kind, collective = nodes[v].kind, nodes[v].collective
                if kind is Kind.COLLECTIVE:
                    launched.append(v)
                    at, moved = at + 1, True
                elif left[v] == 0 and (kind is not Kind.WAIT or collective is None or collective in finish):
                    finish[v] = now
                    at, moved = at + 1, True
        flying = in_flight(problem, launched, finish)
        speed = {v: 1 / pace(problem, [u for u in flying if same_link(problem, u, v)]) for v in flying}
        computing = order[at] if at < len(order) and nodes[order[at]].kind is not Kind.WAIT else None
        if computing is not None:
            contention = problem.contention
            speed = {v: speed[v] / factor(problem, v, contention.stretch) for v in flying}
            slowed = max([Fraction(1), *(factor(problem, v, contention.slowdown) for v in flying)]) - 1
            speed[computing] = 1 / (1 + slowed * part_of_slowdown(problem, computing))
        if not speed:
            return Exact(now, exposed, finish)
        passed = min(left[v] / speed[v] for v in speed)
        for v in speed:
            left[v] -= passed * speed[v]
        if computing is None and at < len(order):
            exposed += passed
        now += passed


def part_of_slowdown(problem: Problem, v: int) -> Fraction:
    """By what binds the compute: its FLOPs for each byte, against the device's."""
    node, contention = problem.nodes[v], problem.contention
    if node.bytes == node.flops == 0:
        return Fraction(1)
    enough = node.bytes == 0 or Fraction(node.flops, node.bytes) >= Fraction(contention.flops_per_byte)
    return Fraction(contention.shares.get("flops" if enough else "bytes", 1))


def in_flight(problem: Problem, launched: Sequence[int], finish: dict[int, Fraction]) -> list[int]:
    """The first of each group that are not finished, as many as it has lanes."""
    first: dict[str | None, list[int]] = {}
    for v in launched:
        if v not in finish:
            first.setdefault(problem.nodes[v].group, []).append(v)
    return [v for ones in first.values() for v in ones[: problem.contention.lanes]]


def pace(problem: Problem, flying: Sequence[int]) -> Fraction:
    """How many times as long as alone those in flight on a link take."""
    groups = [problem.nodes[v].group for v in flying]
    lanes, most = problem.contention.lanes, max(groups.count(group) for group in groups)
    crowded = Fraction(problem.contention.crowding) - 1
    return len(set(groups)) * (1 + (crowded * (most - 1) / (lanes - 1) if lanes > 1 else 0))


def same_link(problem: Problem, u: int, v: int) -> bool:
    links = problem.contention.links
    a, b = str(problem.nodes[u].group), str(problem.nodes[v].group)
    return a == b or (a in links and links[a] == links.get(b))


def factor(problem: Problem, v: int, factors: Mapping[str, float]) -> Fraction:
    """Of the prefixes that fit, the longest."""
    fits = {len(begin): by for begin, by in factors.items() if problem.nodes[v].op.startswith(begin)}
    return Fraction(fits[max(fits)]) if fits else Fraction(1)
