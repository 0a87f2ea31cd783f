"""A graph cut in two, to run one after the other, or several joined in one.

Cut: each node, and its memory and time, is in one of the two.

Forward and backward of a whole step; of a backward, what gives the gradient of the input, and what those of weights::

    whole     w x | mm1 relu mm2 mm3 mm4 output
    first     w x   mm1 relu output                    returns what the second needs: as live as in the whole
    second    w relu | mm2 mm3 mm4 output              takes it as inputs

Split: into several, to run one behind the other, each with what it uses as its inputs.

Joined: side by side, sharing nothing but their streams, or some of their nodes, too. The forward of one micro-batch
beside the backward of another, or the halves of a batch behind the same weights. Listed one behind the other, and
returned together: what any of them returns is held until all have run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap_sched.problem import Kind, Node, NodeId, Problem, Storage, StorageId


def cut_problem(
    problem: Problem,
    front: Iterable[NodeId],
    again: Collection[NodeId] = (),
    sent: Collection[StorageId] = (),
) -> tuple[Problem, Problem]:
    """Some nodes of a problem, with all inputs, and the rest; each in its original order.

    At each node as much is live as in the whole. A wait of the second for a collective of the first finds it done.

    Args:
        problem: One output is the last.
        front: At least one node, each with all that must run before it; not the output.
        again: Nodes of the front that run in the second part, too, and make what that reads anew.
        sent: Storages that the first part returns although the second does not read them.
    """
    nodes, maker = problem.nodes, problem.maker
    inputs = [v for v, node in enumerate(nodes) if node.kind is Kind.INPUT]
    ahead = sorted({*front, *inputs})
    first_only = set(ahead).difference(again)
    behind = [v for v in problem.original_order if v not in first_only]
    taken = {s for v in behind for s in nodes[v].use}.difference(s for v in behind for s in nodes[v].alloc)
    used = {s for node in nodes for s in node.use}
    taken.update(s for v in inputs for s in nodes[v].alloc if s not in used)
    made = [s for v in ahead for s in nodes[v].alloc]
    taken.update(s for s in made if problem.storages[s].pinned)
    crossing = [s for s in made if s in taken]
    given = tuple(s for s in made if s in taken or s in sent)
    end = Node(f"{problem.name}.given", Kind.OUTPUT, tuple(dict.fromkeys(maker[s] for s in given)), (), given)
    first = _of(problem, "first", [*(nodes[v] for v in ahead), end], {v: k for k, v in enumerate(ahead)})
    received = [Node(f"{nodes[maker[s]].name}.{s}", Kind.INPUT, alloc=(s,)) for s in crossing]
    place = {v: len(received) + k for k, v in enumerate(behind)}
    return first, _of(problem, "second", [*received, *(nodes[v] for v in behind)], place)


def _of(problem: Problem, part: str, nodes: list[Node], place: dict[NodeId, NodeId]) -> Problem:
    """Some nodes of a problem, with the storages that they name."""
    named = sorted({s for node in nodes for s in (*node.alloc, *node.use)})
    held: dict[StorageId, StorageId] = {s: k for k, s in enumerate(named)}
    return replace(
        problem,
        name=f"{problem.name}.{part}",
        nodes=tuple(_numbered_anew(node, place, held) for node in nodes),
        storages=tuple(problem.storages[s] for s in named),
    )


def _numbered_anew(node: Node, place: Mapping[NodeId, NodeId], held: Mapping[StorageId, StorageId]) -> Node:
    return node._replace(
        deps=tuple(place[u] for u in node.deps if u in place),
        alloc=tuple(held[s] for s in node.alloc),
        use=tuple(held[s] for s in node.use),
        collective=None if node.collective is None else place.get(node.collective),
    )


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


def join_beside(*problems: Problem) -> JoinedProblem:
    """Graphs that share nothing but their streams; of one memory model, priced for one cluster."""
    name = "_beside_".join(problem.name for problem in problems)
    return join_problems(name, problems, [[False] * len(problem.nodes) for problem in problems])


def join_problems(name: str, problems: Sequence[Problem], shared: Sequence[Sequence[bool]]) -> JoinedProblem:
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
            named = node if of_all[v] else node._replace(name=f"{node.name}.{c}")
            nodes.append(_numbered_anew(named, ids, held))
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


def split_problem(
    problem: Problem, part: Sequence[int], returned: Sequence[Collection[StorageId]]
) -> list[tuple[Problem, set[StorageId]]]:
    """Each part with its own nodes, in their original order; and the storages of the whole that are its inputs.

    Args:
        problem: The whole.
        part: Per node, the index of its part; of inputs and outputs it says nothing: an input is in each part that
            uses it.
        returned: Per part, storages that live to its end, where it makes them or has them.
    """
    nodes, found = problem.nodes, list[tuple[Problem, set[StorageId]]]()
    for k, given in enumerate(returned):
        own = [v for v, at in enumerate(part) if at == k and nodes[v].kind not in (Kind.INPUT, Kind.OUTPUT)]
        made = {s for v in own for s in nodes[v].alloc}
        taken = {s for v in own for s in nodes[v].use} - made
        received = [Node(f"{nodes[problem.maker[s]].name}.{s}", Kind.INPUT, alloc=(s,)) for s in sorted(taken)]
        left = tuple(sorted(made.union(taken).intersection(given)))
        end = Node("given", Kind.OUTPUT, tuple(dict.fromkeys(problem.maker[s] for s in left)), (), left)
        place = {v: len(received) + i for i, v in enumerate(own)}
        found.append((_of(problem, f"{k}", [*received, *(nodes[v] for v in own), end], place), taken))
    return found
