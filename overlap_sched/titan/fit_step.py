"""A training step fitted to a limit, on all ranks alike, before its order is decided."""

from collections.abc import Mapping
from dataclasses import replace

from torch import fx

from overlap_sched.fit import Fit
from overlap_sched.fx.fitting import fit_lifted
from overlap_sched.fx.lifting import Lifted
from overlap_sched.inductor.reporting import log, warn
from overlap_sched.inductor.rewriting import RewriteChoice, rewrite_fx
from overlap_sched.inductor.settings import Settings
from overlap_sched.report.units import count, duration, from_to, size
from overlap_sched.report.words.fit import lacking_line

EFFORT = 1
"""Of the search: a job waits for it."""


def fit_step(gm: fx.GraphModule, settings: Settings) -> Settings:
    """Rewrite the graph of a step so that it keeps to the limit asked for, or leave it as it was.

    Values run again or go to the host, and parts of the graph run in parts, where results stay equal to the last bit.

    Returns:
        The settings for what comes behind it: a graph that has been fitted may not grow again.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    if not settings.fits:
        return settings
    before = list(gm.graph.nodes)
    rewrite_fx(gm, settings, _chosen, "training step", worth=lambda launches, settings: True)
    if list(gm.graph.nodes) == before:
        return settings
    return replace(settings, options=replace(settings.options, headroom=0))


def _chosen(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """The same on all ranks: a plan, or none where no plan keeps the limit."""
    problem = lifted.problem
    limit, slowdown = settings.memory_limit, settings.max_slowdown
    found = fit_lifted(lifted, settings.options, memory_limit=limit, max_slowdown=slowdown, effort=EFFORT)
    if not found.live_bytes_fit:
        lowest = min(one.peak_bytes for one in found.points)
        warn(f"overlap_sched fits nothing in {problem.name!r}: the lowest peak found is {size(lowest)}")
        return RewriteChoice()
    if not found.fits:
        warn(f"overlap_sched fits {problem.name!r}, but not all of it: {lacking_line(found)}")
    log.info("%s", _line(found, settings))
    return RewriteChoice(found.best.rewrites, found.best.problem.names(found.best.order))


def _line(found: Fit, settings: Settings) -> str:
    before, after = found.original, found.best
    peak = from_to(size(before.peak_bytes), size(after.peak_bytes))
    step = from_to(duration(before.step_us), duration(after.step_us))
    told = count(len(after.rewrites), "rewrite")
    return f"{after.problem.name}: {told} to fit; peak {peak}, step {step} (predicted for {settings.priced_for})"
