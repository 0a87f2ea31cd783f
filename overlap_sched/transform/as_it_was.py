"""An order of a rewritten problem as one of the problem that it was made of."""

from collections.abc import Sequence

from overlap_sched.problem import Kind, NodeId, Order, Problem


def order_as_it_was(problem: Problem, after: Problem, order: Sequence[NodeId]) -> Order:
    """Nodes that both have, in the order given; what has been rewritten away stands just before what first needs it.

    Rewritten again from this order, the problem comes to the one given, or nearly.

    Args:
        problem: As it was.
        after: Rewritten; nodes that both have are named alike.
        order: A valid order of ``after``.
    """
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    wanted = [ids[name] for name in after.names(tuple(order)) if name in ids]
    ends = [v for v, node in enumerate(problem.nodes) if node.kind is Kind.OUTPUT]
    placed, result = bytearray(len(problem.nodes)), list[NodeId]()
    for start in (*(v for v in wanted if v not in ends), *problem.original_order):
        stack = [start]
        while stack:
            v = stack[-1]
            missing = [u for u in problem.predecessors[v] if not placed[u]]
            if missing and not placed[v]:
                stack.extend(sorted(missing, reverse=True))
                continue
            stack.pop()
            if not placed[v]:
                placed[v] = True
                result.append(v)
    return tuple(result)
