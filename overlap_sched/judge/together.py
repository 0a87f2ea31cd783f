"""Collectives of several process groups at once: how often they run together, and whether an order may let them.

Groups that share more than one rank run kernels of two communicators on the same devices at the same time. Nothing
orders those (NCCL user guide, "Using multiple NCCL communicators concurrently"), and RCCL hangs with some
(ROCm/rccl#2191, openxla/xla#47467). Groups whose ranks are not known are taken to share all. Shares no code with the
scheduler.
"""

from collections.abc import Callable, Sequence

from overlap_sched.judge.replay import Replay
from overlap_sched.options import Concurrent
from overlap_sched.problem import Kind, Problem

_ROUNDING = 1e-9
"""Relative to the step: overlaps below this come from adding up floating-point numbers."""


def together(problem: Problem, timeline: Replay) -> int:
    """Pairs of collectives of groups that share more than one rank and run at the same time in a replay."""
    if len({problem.nodes[v].group for v in problem.collectives}) < 2:
        return 0
    least_us = _ROUNDING * timeline.step_us
    spans = sorted((timeline.start_us[v], timeline.finish_us[v], v) for v in problem.collectives)
    meet, pairs = _meeting(problem, "disjoint"), 0
    running: list[tuple[float, int]] = []
    for start_us, finish_us, v in spans:
        running = [(end_us, u) for end_us, u in running if end_us > start_us + least_us]
        if finish_us > start_us + least_us:
            pairs += sum(meet(u, v) for _, u in running)
            running.append((finish_us, v))
    return pairs


def together_violation(
    problem: Problem, order: Sequence[int], concurrent: Concurrent, as_originally: bool = True
) -> str | None:
    """The first launch of a valid order while a collective is in flight that it must stay apart from, or ``None``.

    A collective is in flight from its launch to the first of its waits. With ``as_originally`` two that are in flight
    together in the original order may be.
    """
    if concurrent == "any":
        return None
    nodes, meet = problem.nodes, _meeting(problem, concurrent)
    ends = [len(nodes)] * len(nodes)
    for w in range(len(nodes) - 1, -1, -1):  # the first wait comes last
        launch = nodes[w].collective
        if launch is not None:
            ends[launch] = w
    in_flight: list[int] = []
    for v in order:
        node = nodes[v]
        if node.kind is Kind.WAIT:
            in_flight = [u for u in in_flight if u != node.collective]
        elif node.kind is Kind.COLLECTIVE:
            for u in in_flight:
                if meet(u, v) and not (as_originally and u < ends[v] and v < ends[u]):
                    return (
                        f"{node.name} ({node.group}) is launched while {nodes[u].name} ({nodes[u].group}) is in "
                        f"flight: concurrent_groups={concurrent!r} keeps them apart"
                    )
            in_flight.append(v)
    return None


def _meeting(problem: Problem, concurrent: Concurrent) -> Callable[[int, int], bool]:
    """Return a test of whether two collectives must not be in flight together."""
    ranks = {name: frozenset(group.ranks) for name, group in problem.groups.items()}

    def meet(u: int, v: int) -> bool:
        one, other = problem.nodes[u].group or "", problem.nodes[v].group or ""
        if one == other or concurrent == "one":
            return one != other
        return not (ranks[one] and ranks[other]) or len(ranks[one] & ranks[other]) > 1

    return meet
