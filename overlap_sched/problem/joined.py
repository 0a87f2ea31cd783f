"""Several graphs as one problem: side by side, sharing nothing but their streams, or some of their nodes, too.

The forward of one micro-batch beside the backward of another, or the halves of a batch behind the same weights. Listed
one behind the other, and returned together: what any of them returns is held until all have run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from overlap_sched.problem.model import Problem
from overlap_sched.problem.node import Kind, Node, Storage

SHARED = -1
"""The part of a node that all parts need."""


@dataclass(frozen=True)
class JoinedProblem:
    """Several graphs as one.

    Attributes:
        problem: All nodes of the first graph, then those of the next; what is shared where it is first needed.
        part: Per node id the graph that it comes from, or :data:`SHARED`.
        rank: Per node id its id there.
    """

    problem: Problem
    part: tuple[int, ...]
    rank: tuple[int, ...]


def beside(*problems: Problem) -> JoinedProblem:
    """Graphs that share nothing but their streams; of one memory model, priced for one cluster."""
    name = "_beside_".join(problem.name for problem in problems)
    return joined(name, problems, [[False] * len(problem.nodes) for problem in problems])


def joined(name: str, problems: Sequence[Problem], shared: Sequence[Sequence[bool]]) -> JoinedProblem:
    """One problem of several; what is shared must be the same in all of them and comes from the first."""
    nodes: list[Node] = []
    storages: list[Storage] = []
    facts: list[tuple[int, int]] = []
    ends: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first: tuple[dict[int, int], dict[int, int]] = {}, {}  # new ids of the first graph's nodes and storages
    for c, (problem, of_all) in enumerate(zip(problems, shared, strict=True)):
        ids: dict[int, int] = {}
        held: dict[int, int] = {}
        for v, node in enumerate(problem.nodes):
            if node.kind is Kind.OUTPUT:
                ends.append((tuple(ids[u] for u in node.deps), tuple(held[s] for s in node.use)))
                continue
            if of_all[v] and c:
                ids[v] = first[0][v]
                held.update((s, first[1][s]) for s in node.alloc)
                continue
            for s in node.alloc:
                held[s] = len(storages)
                storages.append(problem.storages[s])
            ids[v] = len(nodes)
            nodes.append(_renamed(node, f"{node.name}.{c}" if not of_all[v] else node.name, ids, held))
            facts.append((SHARED if of_all[v] else c, v))
        if c == 0:
            first = ids, held
    deps = tuple(dict.fromkeys(v for made, _ in ends for v in made))
    uses = tuple(dict.fromkeys(s for _, held_on in ends for s in held_on))
    nodes.append(Node("output", Kind.OUTPUT, deps, (), uses))
    facts.append((SHARED, len(nodes)))
    groups = {group: facts_of for problem in problems for group, facts_of in problem.groups.items()}
    part, rank = (tuple(column) for column in zip(*facts, strict=True))
    one = problems[0]
    links = {group: link for problem in problems for group, link in problem.contention.links.items()}
    contention = replace(one.contention, links=links)
    return JoinedProblem(Problem(name, tuple(nodes), tuple(storages), groups, one.memory_model, contention), part, rank)


def _renamed(node: Node, name: str, ids: Mapping[int, int], held: Mapping[int, int]) -> Node:
    return node._replace(
        name=name,
        deps=tuple(ids[u] for u in node.deps),
        alloc=tuple(held[s] for s in node.alloc),
        use=tuple(held[s] for s in node.use),
        collective=None if node.collective is None else ids[node.collective],
    )
