"""A backward in two: the gradient of the input (I), which the stage before waits for, and those of the weights (W).

I runs what that gradient needs; W all else. As few bytes as possible are kept from the one to the other, what forward
has saved included. Not kept is what W can make again: gathers, and what is cheap. Cheap nodes of W run in I where less
is kept then, as the sums for the weight of a norm.

A minimum cut. On the side of the source are nodes that run in I alone; on that of the sink those that run in W, and
the storages that they read::

    maker --bytes--> storage --inf--> reader        cut: made in I, read in W, so kept; nothing is paid for parameters
    source           what W may not make again: it is given, or runs in I
    sink             what cannot run in I: what is not cheap, and what needs that
"""

from collections.abc import Set
from dataclasses import replace

from overlap_sched.peak_memory.cut import INF, SINK, SOURCE, Room, add_arc, maximum_flow
from overlap_sched.problem import OF_HOST, Kind, Node, NodeId, Problem, StorageId
from overlap_sched.problem.parts import cut_problem
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.transform.apply import refusal, writes
from overlap_sched.transform.rewrites import GATHER


def halve_backward(problem: Problem, last: NodeId) -> tuple[Problem, Problem]:
    """I and W, each in the order of the whole.

    Args:
        problem: Of one output at most, its last node.
        last: Makes the gradient of the input. I returns it; W holds it only where it reads it.

    Raises:
        ValueError: Nothing is left for W.
    """
    nodes, sent = problem.nodes, result_of(problem, last)
    if nodes[-1].kind is Kind.OUTPUT:
        end = nodes[-1]._replace(use=tuple(s for s in nodes[-1].use if s not in sent))
        problem = replace(problem, nodes=(*nodes[:-1], end))
    needed = {last} | find_reachable([last], problem.predecessors.__getitem__)
    needed.update(v for v, node in enumerate(nodes) if node.kind is Kind.INPUT)
    cheap, early = _movable_nodes(problem, needed)
    again = _again_in_second(problem, cheap, early)
    front = needed | (cheap & early) - again
    front |= find_reachable(front, problem.predecessors.__getitem__)
    for v in sorted(early - cheap):
        if front.issuperset(problem.predecessors[v]):
            front.add(v)  # a view, which holds nothing
    if all(v in front or not node.alloc for v, node in enumerate(nodes)):
        raise ValueError("it leaves nothing for the gradients of the weights")
    return cut_problem(problem, front, _with_views(problem, front, again & front), sent)


def find_input_gradients(problem: Problem, nbytes: int) -> list[NodeId]:
    """Nodes that may make the gradient of the input, of so many bytes; first that to which most compute leads.

    Of what the graph returns, where any of it has that size; else those behind which nothing has it.
    """
    returned = {s for node in problem.nodes if node.kind is Kind.OUTPUT for s in node.use}
    made = [v for v, node in enumerate(problem.nodes) if node.alloc and node.kind is not Kind.INPUT]
    sized = [v for v in made if _result_bytes(problem, v) == nbytes]
    found = [v for v in sized if not returned.isdisjoint(problem.nodes[v].alloc)] or sized
    passed, last = set[NodeId](), list[tuple[float, NodeId]]()
    for v in reversed(found):
        if v not in passed:
            before = find_reachable([v], problem.predecessors.__getitem__)
            passed |= before
            last.append((-sum(problem.nodes[u].time_us for u in before), problem.waits.get(v, (v,))[0]))
    return [v for _, v in sorted(last)]


def check_input_gradient(problem: Problem, name: str, nbytes: int) -> NodeId:
    """The node of this name, which is to make so many bytes (0: not known).

    Raises:
        ValueError: It does not.
    """
    v = next((v for v, node in enumerate(problem.nodes) if node.name == name), None)
    if v is None or problem.nodes[v].kind is Kind.OUTPUT:
        raise ValueError("the graph has no such node")
    if problem.nodes[v].kind is Kind.INPUT:
        raise ValueError("that is an input of the graph")
    if nbytes and (has := _result_bytes(problem, v)) != nbytes:
        raise ValueError(f"that has {has:,} bytes, where the stage before sends {nbytes:,}")
    return v


def _result_bytes(problem: Problem, v: NodeId) -> int:
    return sum(problem.storages[s].bytes for s in result_of(problem, v))


def result_of(problem: Problem, v: NodeId) -> tuple[StorageId, ...]:
    """The storages that hold what a node gives."""
    node = problem.nodes[v]
    return node.alloc or (node.use if node.collective is None else problem.nodes[node.collective].alloc)


def _movable_nodes(problem: Problem, needed: Set[NodeId]) -> tuple[set[NodeId], set[NodeId]]:
    """Nodes that W may run again, and those that I may run."""
    nodes, maker = problem.nodes, problem.maker
    fixed = {maker[s] for node in nodes if writes(node) for s in node.use}
    for node in nodes:
        makers = {maker[s] for s in node.use}
        if not node.alloc and node.kind is Kind.COMPUTE and len(makers) > 1:
            fixed |= makers  # such a view needs all of them
    cheap, early = set[NodeId](), set(needed)
    for v, node in enumerate(nodes):
        gathers = node.kind is Kind.COLLECTIVE and node.op.startswith(GATHER)
        if (gathers or _is_cheap(node)) and fixed.isdisjoint((v, *(maker[s] for s in node.use))):
            cheap.add(v)
        passes = node.kind is not Kind.OUTPUT and node.op not in OF_HOST and not writes(node)
        if (v in cheap and not gathers if node.alloc else passes) and early.issuperset(problem.predecessors[v]):
            early.add(v)
    return cheap, early


def _is_cheap(node: Node) -> bool:
    """Tell whether it is compute of PyTorch's without matrix products, convolutions or attention."""
    return bool(node.alloc) and not refusal(node) and not node.flops and node.op.startswith(("aten.", "prims."))


def _again_in_second(problem: Problem, cheap: Set[NodeId], early: Set[NodeId]) -> set[NodeId]:
    """The nodes that run in W although I may run them, as few as possible."""
    first = 2 + len(problem.storages)
    room: Room = [{} for _ in range(first + len(problem.nodes))]
    for v, node in enumerate(problem.nodes):
        at = SINK if v not in early else first + v if v in cheap else SOURCE
        for s in node.use if at != SOURCE else ():
            add_arc(room, 2 + s, at, INF)
        for s in node.alloc if at != SINK else ():
            add_arc(room, at, 2 + s, 0 if problem.storages[s].pinned else problem.storages[s].bytes)
    maximum_flow(room)
    sink = find_reachable([SINK], lambda b: [a for a in room[b] if room[a][b]])
    return {v for v in cheap & early if first + v in sink}


def _with_views(problem: Problem, front: Set[NodeId], again: Set[NodeId]) -> set[NodeId]:
    """And the views and waits through which W looks at what it makes again, and what those take of the host."""
    nodes, before = problem.nodes, problem.predecessors
    looks = set[NodeId]()
    for v in sorted(front):
        if not nodes[v].alloc and not (looks | again).isdisjoint(before[v]):
            looks.add(v)
    looks.update(v for v in front if nodes[v].op in OF_HOST)
    start = [v for v in range(len(nodes)) if v not in front or v in again]
    ends = {v: nodes[v].deps for v in start if nodes[v].kind is Kind.OUTPUT}
    return {*again, *find_reachable(start, lambda v: [u for u in ends.get(v, before[v]) if u in looks])}
