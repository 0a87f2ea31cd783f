"""Our pass of GraphTrainer's list: fits a training step to a limit and orders it, or inside Inductor orders that."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import fx

from overlap_sched.fit import Fit
from overlap_sched.fx.fitting import fit_lifted
from overlap_sched.fx.lifting import Lifted
from overlap_sched.inductor.fx_stage import RewriteChoice, rewrite_and_schedule, rewrite_fx
from overlap_sched.inductor.reporting import log, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import enabled
from overlap_sched.report.units import count, duration, from_to, size
from overlap_sched.report.words.fit import lacking_line
from overlap_sched.titan.chosen import plug_in_arguments
from overlap_sched.titan.stage_graph import hold_inputs, stage_name, strangers

GraphPass = Callable[..., fx.GraphModule]
"""A pass of GraphTrainer: ``(gm, example_inputs) -> gm``."""
EFFORT = 1
"""Of the search: a job waits for it."""
_MARK = "overlap_sched"
"""On a graph's output, which a precompiled artifact keeps: its order is ours."""


def overlap_sched_pass(gm: fx.GraphModule, example_inputs: Any = None, *, settings: Settings) -> fx.GraphModule:
    """Fit the graph of a training step where that is asked for, and reorder it; in place, or it stays as it was.

    A step of GraphTrainer, or a graph of one stage of GraphPP, which is not fitted. All ranks that have it do the same.
    Its name is what ``--compile.disable_passes overlap_sched_pass`` turns off. ``gm`` is the graph as torchtitan's own
    passes have left it; it comes back. ``example_inputs`` are not needed.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    name = stage_name(gm)
    if not name:
        rewrite_and_schedule(gm, fit_step(gm, settings), "training step")
    elif _among(gm, name, settings):
        hold_inputs(gm)
        rewrite_and_schedule(gm, replace(settings, graph=name), name)
    return mark(gm)


def _among(gm: fx.GraphModule, name: str, settings: Settings) -> bool:
    """Tell whether a graph of a pipeline communicates only among the ranks that are asked; else say that it stays."""
    try:
        others = [] if settings.ranks is None else strangers(gm, settings.ranks)
    except Exception:  # scheduling fails at the same place, and tells the other ranks
        return True
    if others:
        warn(f"overlap_sched leaves {name!r} as it was: it communicates with ranks {others}, which hold other stages")
    return not others


def fit_step(gm: fx.GraphModule, settings: Settings) -> Settings:
    """Rewrite the graph of a step so that it keeps to the limit asked for, or leave it as it was.

    Values run again or go to the host, and parts of the graph run in parts, where results stay equal to the last bit.
    Returns the settings for what comes behind it: a graph that has been fitted may not grow again.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    if not settings.fits:
        return settings
    before = list(gm.graph.nodes)
    rewrite_fx(gm, settings, _chosen, "training step", always=True)
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


def inside_inductor(full_compilation: GraphPass, settings: Settings) -> GraphPass:
    """The pass that compiles the whole graph, with our plug-in switched on while Inductor runs.

    Inductor orders a graph that it lowers anew; only what is ordered after its fusion stays.
    """

    @wraps(full_compilation)
    def compile_whole_graph(*arguments: Any, **named: Any) -> fx.GraphModule:
        with enabled(**plug_in_arguments(settings)):
            return mark(full_compilation(*arguments, **named))

    return compile_whole_graph


def mark(gm: fx.GraphModule) -> fx.GraphModule:
    """Note on the graph that its order is ours; returns it."""
    gm.graph.output_node().meta[_MARK] = True
    return gm


def is_marked(gm: fx.GraphModule) -> bool:
    """Has our pass seen this graph, in this process or where it was precompiled?"""
    return _MARK in gm.graph.output_node().meta
