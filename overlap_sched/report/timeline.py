"""Who ran when, and how much memory was live: what the picture and the trace both draw.

One order becomes spans on streams (see the drawing in :mod:`overlap_sched.judge.replay`) and memory samples in time.
Nodes that take no time (inputs, views, waits that do not stall) have no span.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import Kind, Problem


class Span(NamedTuple):
    """A node at work, or (of a wait) the compute stream standing still."""

    node: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """One order in time. Spans of one row are in ascending order and do not overlap.

    Attributes:
        step_us: When everything is done.
        compute: The compute stream at work.
        exposed: The compute stream standing still; ``node`` is the wait.
        streams: Per process group that has collectives, in the problem's order of groups, its collectives.
        memory: (when, bytes live from then on), one sample per node in the order run.
    """

    step_us: float
    compute: tuple[Span, ...]
    exposed: tuple[Span, ...]
    streams: Mapping[str, tuple[Span, ...]]
    memory: tuple[tuple[float, int], ...]


def timeline(problem: Problem, order: Sequence[int]) -> Timeline:
    """Replay a valid order and sort what happened into rows."""
    run = replay(problem, order)
    compute: list[Span] = []
    exposed: list[Span] = []
    used = {problem.nodes[v].group for v in problem.collectives}
    streams: dict[str, list[Span]] = {name: [] for name in problem.groups if name in used}
    for v in order:
        node, span = problem.nodes[v], Span(v, run.start_us[v], run.finish_us[v])
        if span.end_us <= span.start_us:
            continue
        if node.kind is Kind.WAIT:
            exposed.append(span)
        elif node.kind is Kind.COLLECTIVE:
            streams[node.group or ""].append(span)
        else:
            compute.append(span)
    profile = memory_profile(problem, order)
    return Timeline(
        step_us=run.step_us,
        compute=tuple(compute),
        exposed=tuple(exposed),
        streams={name: tuple(spans) for name, spans in streams.items()},
        memory=tuple((run.at_us[v], live) for v, live in zip(order, profile, strict=True)),
    )
