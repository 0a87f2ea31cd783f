"""Ours: :func:`overlap_sched.fit.fit` asked all the questions of the table."""

from collections.abc import Iterator, Sequence
from functools import partial

from overlap_sched.fit import fit
from overlap_sched.problem import Problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.host import HostLink
from overlap_sched.transform.prices import Prices
from scripts.studies.fit.points import Point, point
from scripts.studies.fit.rows import LIMITS, SLOWDOWNS

PCIE_3 = HostLink("PCIe 3.0 x16", 12.6e9)
"""MAGIS's machine: Xeon Silver 4210R (Intel's product page: PCI Express 3.0), so 15.75 GB/s in one direction; 0.8 of
it, as the other links of :mod:`overlap_sched.transform.host`."""

FISSION = "fission"
KINDS = ("recompute", "offload", FISSION)
"""Kinds of rewrites that the ablation takes away."""


def ours(
    problem: Problem,
    prices: Prices,
    reference_us: float,
    kinds: Sequence[str] = KINDS,
    effort: int = 2,
    fissions: Sequence[Fission] = (),
) -> Iterator[Point]:
    """All plans that were found on the way to the answers, each measured again by the judge.

    Args:
        problem: The step.
        prices: Of what rewrites make.
        reference_us: The step that slowdowns count from.
        kinds: Rewrites that may be used.
        effort: Of the search.
        fissions: Of the step along its batch.
    """
    original_bytes = point(problem).peak_bytes
    ask = partial(
        fit,
        problem,
        prices,
        kinds=tuple(kind for kind in kinds if kind != FISSION),
        effort=effort,
        fissions=fissions if FISSION in kinds else (),
    )
    for limit in LIMITS:
        found = ask(memory_limit=int(limit * original_bytes))
        yield from (point(plan.problem, plan.order) for plan in (found.best, found.without, *found.points))
    for slowdown in SLOWDOWNS:
        allowed = (1 + slowdown) * reference_us / found.without.step_us - 1
        answer = ask(max_slowdown=max(allowed, 0.0))
        yield from (point(plan.problem, plan.order) for plan in (answer.best, *answer.points))


def in_parts(problem: Problem, prices: Prices, fissions: Sequence[Fission]) -> Iterator[Point]:
    """The step in parts along its batch, as it is emitted: nothing recomputed, copied or reordered."""
    for one in fissions:
        yield point(apply(problem, [one], prices))
