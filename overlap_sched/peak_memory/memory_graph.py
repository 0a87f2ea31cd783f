"""A problem as the memory searches see it: which bytes come and go with which node, and what must run first.

Storages sort into four kinds by the rules of :mod:`overlap_sched.judge.validate`:

    always    inputs that are pinned or that nothing uses: live in every order, one constant
    passing   made by a node and used by nobody: there for that step only, part of its transient
    kept      pinned, or made by an output node: from their maker to the end; who uses them does not matter
    freeable  all others: gone once their last user has run

Ids are those of the problem; inputs without predecessors run first and cost nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.precedence import Preserve, launch_pairs, neighbours


@dataclass(frozen=True)
class MemoryGraph:
    """Bytes and precedence of a problem, ready to be walked in either direction.

    Attributes:
        problem: Where it comes from.
        always_bytes: Live whatever the order.
        size: Bytes per storage.
        makes: Per node, the kept and freeable storages that it brings to life (inputs: none).
        uses: Per node, the freeable storages that it uses, without repeats.
        passing_bytes: Per node, what lives for its own step only.
        users: Per freeable storage its users, ascending; empty for all others.
        kept: Storages that stay to the end once made. given: freeable inputs, live from the start.
        before, after: Per node, what must run before and after it: the problem's rules, and the launch order of
            collectives where it is to be preserved.
        first: Inputs, which every order starts with.
    """

    problem: Problem
    always_bytes: int
    size: tuple[int, ...]
    makes: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[int, ...], ...]
    passing_bytes: tuple[int, ...]
    users: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    given: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """Per storage, who brings it to life; -1 for what is there from the start."""
        maker = [-1] * len(self.size)
        for v, made in enumerate(self.makes):
            for s in made:
                maker[s] = v
        return tuple(maker)

    @cached_property
    def rest(self) -> tuple[int, ...]:
        """All nodes but :attr:`first`, in the original order."""
        first = set(self.first)
        return tuple(v for v in range(len(self.makes)) if v not in first)


def memory_graph_of(problem: Problem, preserve: Preserve = "none") -> MemoryGraph:
    """Build the memory graph; ``preserve`` as in :attr:`~overlap_sched.options.Options.preserve_collective_order`."""
    nodes, storages = problem.nodes, problem.storages
    users: list[list[int]] = [[] for _ in storages]
    for v, node in enumerate(nodes):
        for s in dict.fromkeys(node.use):
            users[s].append(v)
    always, kept, given = 0, [], []
    passing = [0] * len(nodes)
    makes: list[tuple[int, ...]] = []
    freeable = [False] * len(storages)
    for v, node in enumerate(nodes):
        made = []
        for s in node.alloc:
            size, pinned = storages[s]
            if node.kind is Kind.INPUT:
                if pinned or not users[s]:
                    always += size
                else:
                    given.append(s)
                    freeable[s] = True
            elif not users[s] and node.kind is not Kind.OUTPUT:
                passing[v] += size
            else:
                made.append(s)
                if pinned or not users[s]:
                    kept.append(s)
                else:
                    freeable[s] = True
        makes.append(tuple(made))
    before, after = neighbours(problem, launch_pairs(problem, problem.original_order, preserve))
    return MemoryGraph(
        problem=problem,
        always_bytes=always,
        size=tuple(storage.bytes for storage in storages),
        makes=tuple(makes),
        uses=tuple(tuple(s for s in dict.fromkeys(node.use) if freeable[s]) for node in nodes),
        passing_bytes=tuple(passing),
        users=tuple(tuple(u) if freeable[s] else () for s, u in enumerate(users)),
        kept=tuple(kept),
        given=tuple(given),
        before=tuple(before),
        after=tuple(after),
        first=tuple(v for v, node in enumerate(nodes) if node.kind is Kind.INPUT and not before[v]),
    )


def lead_with_inputs(graph: MemoryGraph, order: Iterable[int]) -> Order:
    """An order of :attr:`MemoryGraph.rest` made one of all nodes."""
    return (*graph.first, *order)
