"""What process groups are for, told by what runs on them: on real jobs their names are numbers.

::

    weights in, gradients out     gather of little but inputs; reduction that little but outputs follow   FSDP, data
    tokens to experts and back    all_to_all                                                             expert
    parts of activations          gather, reduction and all_reduce else                                  tensor
    values to the host and back   offload, reload                                                        host
    not known                     all else: sends, broadcasts                                            other
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.report.units import printable
from overlap_sched.transform.apply import OFFLOAD, RELOAD
from overlap_sched.transform.rewrites import second_group

Purpose = Literal["FSDP", "data", "tensor", "expert", "host", "other"]

FEW = 6
"""So many nodes with a time may lie between a collective and what the graph is given, or gives: casts, copies, sums."""
MOST_SEEN = 60
"""So many nodes are looked at; what has more before or behind it is an activation."""


def group_purposes(problem: Problem) -> dict[str, Purpose]:
    """Per process group on which something runs, what it is for, by most of its bytes."""
    sums = dict[str, dict[Purpose, int]]()
    for v in problem.collectives:
        of, what = sums.setdefault(problem.nodes[v].group or "", {}), _what(problem, v)
        of[what] = of.get(what, 0) + max(problem.nodes[v].bytes, 1)
    return {name: max(of, key=lambda what: of[what]) for name, of in sums.items()}


def group_names(purposes: Mapping[str, Purpose]) -> dict[str, str]:
    """Per process group its name with what it is for: ``"FSDP 0"``, ``"tensor 137"``, ``"other 7"``.

    A name of more than digits says what it is for itself.
    """
    return {name: _named(name, what) for name, what in purposes.items()}


def _named(name: str, what: Purpose) -> str:
    return f"{what} {name}" if name.removesuffix(second_group("")).isdecimal() else printable(name)


def by_purpose(names: Iterable[str], purposes: Mapping[str, Purpose]) -> list[str]:
    """Order groups by what they are for; those of one purpose stay in their order."""
    kinds = get_args(Purpose)
    return sorted(names, key=lambda name: kinds.index(purposes[name]))


def _what(problem: Problem, v: NodeId) -> Purpose:
    op = problem.nodes[v].op
    if op.startswith("all_to_all"):
        return "expert"
    if op in (OFFLOAD, RELOAD):
        return "host"
    if op.startswith("all_gather"):
        return "FSDP" if _ends(problem, v, problem.predecessors, Kind.INPUT) else "tensor"
    if not op.startswith(("reduce_scatter", "all_reduce")):
        return "other"
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
