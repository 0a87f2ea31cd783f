"""Times of a graph's nodes from traces of real steps: events in, times out.

Nodes are found by operator and shapes, and among equals by order: the k-th multiplication of these shapes is the k-th
in the trace. Of several runs, the median. Which calls are the graph's: :mod:`overlap_sched.cost.profile.runs`.
Collectives: :mod:`overlap_sched.cost.profile.skew`. Fused kernels: :mod:`overlap_sched.cost.fusion.fused_names`.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from overlap_sched.cost.fusion.fused_names import PredictedKernel, fused_ops, shared
from overlap_sched.cost.profile.kineto import RankTrace
from overlap_sched.cost.profile.runs import Sought, runs_in
from overlap_sched.cost.profile.skew import Rank, Sample, without_skew
from overlap_sched.errors import ProfileError

How = Literal["order", "shapes", "names"]
"""How a node was found: the k-th of its shapes; by its shapes alone, the median of all; by a kernel's name."""


class MeasuredTime(NamedTuple):
    """The time of a node, and how it was found."""

    us: float
    how: How


@dataclass(frozen=True)
class Profile:
    """What traces say of a graph.

    Attributes:
        measured: Per node; ``None``: not found.
        runs, ranks: How many runs of the graph, of how many ranks.
        skew_us: What was taken out of all collectives of a run; ``None``: of one rank, so it is still in them.
        fused_us: Time of fused kernels in a run.
    """

    sought: tuple[Sought, ...]
    measured: tuple[MeasuredTime | None, ...]
    runs: int
    ranks: int
    skew_us: float | None
    fused_us: float

    def share(self, *how: How) -> float:
        """Part of the predicted time of all nodes that belongs to nodes found (in one of these ways, or in any)."""
        whole = sum(node.us for node in self.sought)
        found = zip(self.sought, self.measured, strict=True)
        part = sum(node.us for node, m in found if m is not None and (not how or m.how in how))
        return part / whole if whole else 0.0


def profile_of(sought: Sequence[Sought], traces: Sequence[RankTrace]) -> Profile:
    """Match the nodes of a graph, in its order, with traces of it."""
    ranks = [runs_in(trace, sought) for trace in traces]
    launched, skew_us = without_skew(ranks)
    runs = [[(seen.key, seen.call.us) for seen in sample.calls] for rank in ranks for sample in rank.samples]
    measured = _by_order(sought, [*runs, *launched])
    if not any(measured):
        raise _numbers_differ(traces[0].path, sought, ranks[0].samples[0])
    fused = _fused(ranks)
    left = [v for v, node in enumerate(sought) if measured[v] is None and not node.collective and node.us > 0.0]
    parts = shared([_part(sought[v]) for v in left], fused)
    for v, us in zip(left, parts, strict=True):
        measured[v] = None if us is None else MeasuredTime(us, "names")
    return Profile(
        tuple(sought),
        tuple(measured),
        runs=len(launched),
        ranks=len(ranks),
        skew_us=skew_us if len(ranks) > 1 else None,
        fused_us=sum(fused.values(), start=0.0),
    )


def _part(node: Sought) -> PredictedKernel:
    return PredictedKernel(frozenset(node.kernel or (node.name,)), node.us, node.fuses)


def _by_order(
    sought: Sequence[Sought], runs: Sequence[Sequence[tuple[Hashable, float | None]]]
) -> list[MeasuredTime | None]:
    nodes: dict[Hashable, list[int]] = defaultdict(list)
    for v, node in enumerate(sought):
        nodes[node.key].append(v)
    times: dict[int, list[float]] = defaultdict(list)
    others: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        seen: dict[Hashable, list[float | None]] = defaultdict(list)
        for key, us in run:
            seen[key].append(us)
        for key, found in seen.items():
            ids = nodes.get(key, ())
            in_order = bool(ids) and len(found) % len(ids) == 0
            for k, us in enumerate(found):
                if us is not None and in_order:
                    times[ids[k % len(ids)]].append(us)
                elif us is not None and ids:
                    others[key].append(us)
    result: list[MeasuredTime | None] = [None] * len(sought)
    for v, node in enumerate(sought):
        if times[v]:
            result[v] = MeasuredTime(statistics.median(times[v]), "order")
        elif others[node.key] and node.shapes is not None:
            result[v] = MeasuredTime(statistics.median(others[node.key]), "shapes")
    return result


def _fused(ranks: Sequence[Rank]) -> dict[str, float]:
    """By the operators in their names, the median time of fused kernels in a run."""
    runs: list[dict[str, float]] = []
    for sample in (sample for rank in ranks for sample in rank.samples):
        run: dict[str, float] = defaultdict(float)
        for call in sample.fused:
            run[fused_ops(call.name) or ""] += call.us or 0.0
        runs.append(run)
    every = dict.fromkeys(ops for run in runs for ops in run)
    return {ops: statistics.median(run.get(ops, 0.0) for run in runs) for ops in every}


def _numbers_differ(path: str, sought: Sequence[Sought], sample: Sample) -> ProfileError:
    """Return the error for a problem file, whose operators have no shapes: there must be as many."""
    seen = Counter(seen.key for seen in (*sample.calls, *sample.launches))
    node = next(node for node in sought if node.key in seen)
    return ProfileError(
        f"{path}: has other numbers of the graph's operators: {node.name} {seen[node.key]} times, where the graph has "
        f"{sum(other.key == node.key for other in sought)}. Was another model or graph profiled? A problem file has no "
        "shapes to tell operators apart: give the dump, if you have it."
    )
