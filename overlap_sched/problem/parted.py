"""A graph as two, one to run after the other: each node, and its memory and time, in one of them.

Forward and backward of a whole step; of a backward, what gives the gradient of the input, and what those of weights::

    whole     w x | mm1 relu mm2 mm3 mm4 output
    first     w x   mm1 relu output                    returns what the second needs: as live as in the whole
    second    w relu | mm2 mm3 mm4 output              takes it as inputs
"""

from dataclasses import replace

from overlap_sched.problem.model import Order, Problem
from overlap_sched.problem.node import Kind, Node, NodeId, StorageId


def needed_first(problem: Problem, last: NodeId) -> tuple[Order, int]:
    """An order in which what a node needs comes first, then that node, then the rest; and how many come first."""
    needed, left = {last}, [last]
    while left:
        for u in problem.predecessors[left.pop()]:
            if u not in needed:
                needed.add(u)
                left.append(u)
    needed.update(v for v, node in enumerate(problem.nodes) if node.kind is Kind.INPUT)
    rest = [v for v in problem.original_order if v not in needed]
    return (*sorted(needed), *rest), len(needed)


def parted(problem: Problem, at: int) -> tuple[Problem, Problem]:
    """The first so many nodes of a problem, with all inputs, and the rest; each in its original order.

    At each node as much is live as in the whole. A wait of the second for a collective of the first finds it done.

    Args:
        problem: In its original order, of which one output is the last.
        at: At least 1, and less than the number of nodes.
    """
    ahead = [v for v, node in enumerate(problem.nodes) if v < at or node.kind is Kind.INPUT]
    front = set(ahead)
    behind = [v for v in problem.original_order if v not in front]
    taken = {s for v in behind for s in problem.nodes[v].use}
    used = {s for node in problem.nodes for s in node.use}
    made = [s for v in ahead for s in problem.nodes[v].alloc]
    idle = {s for v in ahead if problem.nodes[v].kind is Kind.INPUT for s in problem.nodes[v].alloc if s not in used}
    crossing = [s for s in made if s in taken or s in idle or problem.storages[s].pinned]
    nodes = [problem.nodes[v] for v in ahead]
    makers = {s: problem.maker[s] for s in crossing}
    deps = tuple(dict.fromkeys(makers[s] for s in crossing))
    end = Node(f"{problem.name}.given", Kind.OUTPUT, deps, (), tuple(crossing))
    first = _of(problem, "first", [*nodes, end], {v: k for k, v in enumerate(ahead)})
    inputs = [Node(f"{problem.nodes[makers[s]].name}.{s}", Kind.INPUT, alloc=(s,)) for s in crossing]
    place = {v: len(inputs) + k for k, v in enumerate(behind)}
    return first, _of(problem, "second", [*inputs, *(problem.nodes[v] for v in behind)], place)


def _of(problem: Problem, part: str, nodes: list[Node], place: dict[NodeId, NodeId]) -> Problem:
    """Some nodes of a problem, with the storages that they name."""
    named = sorted({s for node in nodes for s in (*node.alloc, *node.use)})
    held: dict[StorageId, StorageId] = {s: k for k, s in enumerate(named)}
    return replace(
        problem,
        name=f"{problem.name}.{part}",
        nodes=tuple(
            node._replace(
                deps=tuple(place[u] for u in node.deps if u in place),
                alloc=tuple(held[s] for s in node.alloc),
                use=tuple(held[s] for s in node.use),
                collective=place.get(node.collective) if node.collective is not None else None,
            )
            for node in nodes
        ),
        storages=tuple(problem.storages[s] for s in named),
    )
