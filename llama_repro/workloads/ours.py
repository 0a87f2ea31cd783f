"""Ours: :func:`overlap_sched.fit.fit` asked all the questions of the table."""

from collections.abc import Iterator, Sequence

from llama_repro.workloads.points import Point, point
from llama_repro.workloads.rows import LIMITS, SLOWDOWNS
from overlap_sched.fit import fit
from overlap_sched.problem import Problem
from overlap_sched.transform.host import HostLink
from overlap_sched.transform.prices import Prices

PCIE_3 = HostLink("PCIe 3.0 x16", 12.6e9)
"""MAGIS's machine: Xeon Silver 4210R (Intel's product page: PCI Express 3.0), so 15.75 GB/s in one direction; 0.8 of
it, as the other links of :mod:`overlap_sched.transform.host`."""

KINDS = ("recompute", "offload")
"""Kinds of rewrites that the ablation takes away."""


def ours(
    problem: Problem, prices: Prices, reference_us: float, kinds: Sequence[str] = KINDS, effort: int = 2
) -> Iterator[Point]:
    """All plans that were found on the way to the answers, each measured again by the judge.

    Args:
        problem: The step.
        prices: Of what rewrites make.
        reference_us: The step that slowdowns count from.
        kinds: Rewrites that may be used.
        effort: Of the search.
    """
    original_bytes = point(problem).peak_bytes
    for limit in LIMITS:
        found = fit(problem, prices, memory_limit_bytes=int(limit * original_bytes), kinds=tuple(kinds), effort=effort)
        yield from (point(plan.problem, plan.order) for plan in (found.best, found.without, *found.points))
    for slowdown in SLOWDOWNS:
        allowed = (1 + slowdown) * reference_us / found.without.step_us - 1
        answer = fit(problem, prices, max_slowdown=allowed, kinds=tuple(kinds), effort=effort)
        yield from (point(plan.problem, plan.order) for plan in (answer.best, *answer.points))
