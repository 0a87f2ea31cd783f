"""What process groups are for, told by what runs on them: on real jobs their names are numbers.

::

    weights in, gradients out     gather of little but inputs; reduction that little but outputs follow   FSDP, data
    tokens to experts and back    all_to_all                                                             expert
    parts of activations          all else                                                               tensor
"""

from collections.abc import Sequence

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.report.units import printable

FEW = 6
"""So many nodes with a time may lie between a collective and what the graph is given, or gives: casts, copies, sums."""
MOST_SEEN = 60
"""So many nodes are looked at; what has more before or behind it is an activation."""


def group_names(problem: Problem) -> dict[str, str]:
    """Per process group on which something runs, its name with what it is for: ``"FSDP 0"``, ``"tensor 137"``.

    By most of its bytes. A name of more than digits says what it is for itself.
    """
    sums = dict[str, dict[str, int]]()
    for v in problem.collectives:
        of, what = sums.setdefault(problem.nodes[v].group or "", {}), _what(problem, v)
        of[what] = of.get(what, 0) + max(problem.nodes[v].bytes, 1)
    return {
        name: f"{max(of, key=lambda what: of[what])} {name}" if name.isdecimal() else printable(name)
        for name, of in sums.items()
    }


def _what(problem: Problem, v: NodeId) -> str:
    op = problem.nodes[v].op
    if op.startswith("all_to_all"):
        return "expert"
    if op.startswith("all_gather"):
        return "FSDP" if _ends(problem, v, problem.predecessors, Kind.INPUT) else "tensor"
    if _ends(problem, v, problem.successors, Kind.OUTPUT):
        return "data" if op.startswith("all_reduce") else "FSDP"
    return "tensor"


def _ends(problem: Problem, v: NodeId, following: Sequence[Sequence[NodeId]], end: Kind) -> bool:
    """Is there little between a node and where the graph begins, or ends?"""
    seen, look, timed = {v}, [v], 0
    while look:
        for u in following[look.pop()]:
            node = problem.nodes[u]
            if u in seen or node.kind is end:
                continue
            seen.add(u)
            look.append(u)
            timed += node.time_us > 0
            if len(seen) > MOST_SEEN or timed > FEW or node.kind is Kind.COLLECTIVE:
                return False
    return True
