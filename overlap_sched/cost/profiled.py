"""A problem with the times of a profile; what the profile does not know keeps its predicted time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlap_sched.cost.kineto import RankTrace, Shape, rank_trace
from overlap_sched.cost.profile import Profile, Sought, profile_of
from overlap_sched.cost.trace_file import read_trace_file
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits

Shapes = tuple[Shape, ...]
"""Of the tensors that a node takes, as in :class:`overlap_sched.cost.profile.Sought`."""


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
    """Read one trace per rank.

    Raises:
        ProfileError, InputTooLargeError: See :func:`overlap_sched.cost.trace_file.read_trace_file`.
    """
    return [rank_trace(read_trace_file(path, limits)) for path in paths]


def profiled(
    problem: Problem,
    traces: Sequence[RankTrace],
    shapes: Sequence[Shapes | None] | None = None,
    fused: Collection[int] = (),
) -> Profiled:
    """Give a problem the times of traces.

    Args:
        problem: Its times are predictions.
        traces: One per rank, of the same steps.
        shapes: Per node, where they are known: of a graph, not of a problem file.
        fused: Nodes that are predicted to take no time because a kernel of others does their work: it may run apart.

    Raises:
        ProfileError: A trace has nothing of the graph; ranks do not go together.
    """
    ids = [v for v, node in enumerate(problem.nodes) if node.kind in (Kind.COMPUTE, Kind.COLLECTIVE) and node.op]
    ids = [v for v in ids if problem.nodes[v].time_us > 0.0 or v in fused]
    profile = profile_of([_sought(problem.nodes[v], None if shapes is None else shapes[v]) for v in ids], traces)
    nodes = list(problem.nodes)
    for v, measured in zip(ids, profile.measured, strict=True):
        if measured is not None:
            nodes[v] = nodes[v]._replace(time_us=measured.us)
    return Profiled(replace(problem, nodes=tuple(nodes)), profile, tuple(ids))


def _sought(node: Node, shapes: Shapes | None) -> Sought:
    collective = node.kind is Kind.COLLECTIVE
    namespace, _, rest = node.op.partition(".")
    name = f"{namespace}::{rest.partition('.')[0]}" if rest else node.op
    if collective:
        name = "_c10d_functional::" + node.op.removesuffix("_out").removesuffix("_")
    return Sought(name, shapes, node.time_us, collective, node.bytes, fuses=not node.flops)
