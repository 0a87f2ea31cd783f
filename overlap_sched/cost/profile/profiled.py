"""A problem with the times of a profile; what the profile does not know keeps its predicted time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlap_sched.cost.profile.kineto import RankTrace, Shape, rank_trace
from overlap_sched.cost.profile.runs import Sought
from overlap_sched.cost.profile.times import Profile, profile_of
from overlap_sched.cost.profile.trace_file import read_trace_file
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits

Shapes = tuple[Shape, ...]
"""Of the tensors that a node takes, as in :class:`overlap_sched.cost.profile.runs.Sought`."""


@dataclass(frozen=True)
class Profiled:
    """A problem with measured times.

    Attributes:
        problem: The problem, with the times that were found.
        profile: What was found.
        nodes: Per node of ``profile``, its id in the problem.
    """

    problem: Problem
    profile: Profile
    nodes: tuple[int, ...]

    @property
    def measured(self) -> tuple[int, ...]:
        """Ids of the nodes whose times are from the profile."""
        return tuple(v for v, m in zip(self.nodes, self.profile.measured, strict=True) if m is not None)


def read_traces(paths: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS) -> list[RankTrace]:
    """Read one trace per rank."""
    return [rank_trace(read_trace_file(path, limits)) for path in paths]


def profiled(
    problem: Problem,
    traces: Sequence[RankTrace],
    shapes: Sequence[Shapes | None] | None = None,
    kernels: Sequence[str] = (),
) -> Profiled:
    """Give a problem the times of traces.

    Args:
        problem: Its times are predictions.
        traces: One per rank, of the same steps.
        shapes: Per node, where they are known: of a graph, not of a problem file.
        kernels: Per node, the name of the kernel that it is predicted to share with others, whose time is on one of
            them; ``""``: none. Empty: no node shares one.

    Raises:
        ProfileError: A trace has nothing of the graph; ranks do not go together.
    """
    ids = [v for v, node in enumerate(problem.nodes) if node.kind in (Kind.COMPUTE, Kind.COLLECTIVE) and node.op]
    kernel_of = kernels or [""] * len(problem.nodes)
    ids = [v for v in ids if problem.nodes[v].time_us > 0.0 or kernel_of[v]]
    members: dict[str, list[str]] = defaultdict(list)
    for v in ids:
        members[kernel_of[v]].append(_name(problem.nodes[v]))
    members[""] = []
    sought = [
        _sought(problem.nodes[v], None if shapes is None else shapes[v], tuple(members[kernel_of[v]])) for v in ids
    ]
    profile = profile_of(sought, traces)
    nodes = list(problem.nodes)
    for v, measured in zip(ids, profile.measured, strict=True):
        if measured is not None:
            nodes[v] = nodes[v]._replace(time_us=measured.us)
    return Profiled(replace(problem, nodes=tuple(nodes)), profile, tuple(ids))


def _sought(node: Node, shapes: Shapes | None, kernel: tuple[str, ...]) -> Sought:
    collective = node.kind is Kind.COLLECTIVE
    return Sought(_name(node), shapes, node.time_us, collective, node.bytes, not node.flops, kernel)


def _name(node: Node) -> str:
    """As the profiler writes it: ``aten::mm`` for ``aten.mm.default``."""
    if node.kind is Kind.COLLECTIVE:
        return "_c10d_functional::" + node.op.removesuffix("_out").removesuffix("_")
    namespace, _, rest = node.op.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}" if rest else node.op
