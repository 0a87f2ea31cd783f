"""Why collectives were rewritten: what each rewrite bought, what it costs, and what else was tried."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.transform.buckets import host_times
from overlap_sched.transform.rewrites import (
    Bucket,
    Keep,
    Recompute,
    Regather,
    Rewrite,
    to_json,
)


class Record(NamedTuple):
    """One rewrite.

    Attributes:
        rewrite: It.
        stream_us: By how much less its group's stream has to do (negative: more).
        compute_us: What it adds to the compute stream: copies, smaller kernels; negative: what it takes off it.
        held_bytes: What its launch allocates, beyond the largest of what it stands for: live together from there on.
            Of what is kept, or gathered again (negative): what is held, or is not, between two uses.
    """

    rewrite: Rewrite
    stream_us: float
    compute_us: float
    held_bytes: int


def records(before: Problem, after: Problem, rewrites: Sequence[Rewrite]) -> tuple[Record, ...]:
    """One record per rewrite, in their order.

    Args:
        before: The problem as it was.
        after: With all rewrites.
        rewrites: Them.
    """
    old = {node.name: node for node in before.nodes}
    new = {node.name: node for node in after.nodes}
    names = sorted(new.keys() - old.keys())
    host_us = {before.nodes[v].name: us for v, us in host_times(before).items()}
    return tuple(_record((before, after), old, new, names, host_us, rewrite) for rewrite in rewrites)


def _record(
    problems: tuple[Problem, Problem],
    old: Mapping[str, Node],
    new: Mapping[str, Node],
    names: Sequence[str],
    host_us: Mapping[str, float],
    rewrite: Rewrite,
) -> Record:
    """``names``: of all nodes that rewrites made, sorted; ``host_us``: what collectives took of the compute stream."""
    before, after = problems
    gone, made = list[Node](), list[Node]()
    match rewrite:
        case Bucket():
            gone = [old[name] for name in rewrite.members if name in old]
            made = [new[name] for name in _made(names, rewrite.name)]
        case Keep():
            gone = [old[rewrite.again]]
        case Regather():
            made = [new[name] for name in _made(names, rewrite.name)]
        case Recompute():
            made = [new[rewrite.new_name(name)] for name in rewrite.nodes]
    stream_us = _us(gone, Kind.COLLECTIVE) - _us(made, Kind.COLLECTIVE)
    saved_us = sum((host_us.get(node.name, 0.0) for node in gone), 0.0)
    compute_us = _us(made, Kind.COMPUTE) - _us(gone, Kind.COMPUTE) - saved_us
    largest = max((_allocated(before, node) for node in gone), default=0)
    allocated = sum(_allocated(after, node) for node in made if not node.name.endswith("_copy"))
    if isinstance(rewrite, Keep | Regather):
        return Record(rewrite, stream_us, compute_us, largest - allocated)
    return Record(rewrite, stream_us, compute_us, max(allocated - largest, 0))


def _us(nodes: Sequence[Node], kind: Kind) -> float:
    return sum((node.time_us for node in nodes if node.kind is kind), 0.0)


def _made(names: Sequence[str], name: str) -> list[str]:
    """The launch of this name, if it is there, and what is named after it."""
    made: list[str] = []
    for start in (name, f"{name}_", f"{name}."):
        first = bisect_left(names, start)
        last = bisect_right(names, start) if start == name else bisect_left(names, f"{start}\U0010ffff")
        made += names[first:last]
    return made


def _allocated(problem: Problem, node: Node) -> int:
    return sum(problem.storages[s].bytes for s in node.alloc)


def records_json(found: Sequence[Record]) -> list[dict[str, Any]]:
    """For ``--json``: the rewrite as :func:`overlap_sched.transform.rewrites.to_json` has it, and its figures."""
    figures = ("stream_us", "compute_us", "held_bytes")
    data = zip(found, to_json([one.rewrite for one in found]), strict=True)
    return [rewrite | {name: getattr(one, name) for name in figures} for one, rewrite in data]
