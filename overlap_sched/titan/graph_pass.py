"""Our pass of GraphTrainer's list: fits a training step to a limit and orders it, or inside Inductor orders that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from torch import fx
from torchtitan.experiments.graph_trainer.cudagraph import cudagraph_pass
from torchtitan.experiments.graph_trainer.inductor_passes import full_inductor_compilation_pass
from torchtitan.experiments.graph_trainer.passes import final_inductor_compile_passes

from overlap_sched.fx.calls import launched_by, live_ranks
from overlap_sched.fx.fitting import fit_lifted
from overlap_sched.fx.lifting import STAYS, Lifted
from overlap_sched.inductor.eager import options_from
from overlap_sched.inductor.fx_stage import RewriteChoice, rewrite_and_schedule, rewrite_fx
from overlap_sched.inductor.reporting import log, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import current_settings, enabled
from overlap_sched.report.units import count, duration, from_to, size
from overlap_sched.report.words.rewrites import lacking_line

GraphPass = Callable[..., fx.GraphModule]
"""A pass of GraphTrainer: ``(gm, example_inputs) -> gm``."""
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
        return mark(gm)
    try:
        others = [] if settings.ranks is None else strangers(gm, settings.ranks)
    except Exception:  # scheduling fails at the same place, and tells the other ranks
        others = []
    if others:
        warn(f"overlap_sched leaves {name!r} as it was: it communicates with ranks {others}, which hold other stages")
        return mark(gm)
    # no input is freed while a graph of GraphPP runs: its runtime holds them all, saved values, too, in the frames of
    # ``runner._handle_*`` and of ``GraphTrainerStageGraphs``
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta[STAYS] = True
    rewrite_and_schedule(gm, replace(settings, graph=name), name)
    return mark(gm)


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
    same = list(gm.graph.nodes) == before
    return settings if same else replace(settings, options=replace(settings.options, headroom=0))


def _chosen(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """The same on all ranks: a plan, or none where no plan keeps the limit."""
    problem = lifted.problem
    limit, slowdown = settings.memory_limit, settings.max_slowdown
    found = fit_lifted(lifted, settings.options, memory_limit=limit, max_slowdown=slowdown, effort=1)
    if not found.live_bytes_fit:
        lowest = min(one.peak_bytes for one in found.points)
        warn(f"overlap_sched fits nothing in {problem.name!r}: the lowest peak found is {size(lowest)}")
        return RewriteChoice()
    if not found.fits:
        warn(f"overlap_sched fits {problem.name!r}, but not all of it: {lacking_line(found)}")
    peak = from_to(size(found.original.peak_bytes), size(found.best.peak_bytes))
    step = from_to(duration(found.original.step_us), duration(found.best.step_us))
    rewrites, name = found.best.rewrites, found.best.problem.name
    told = f"{count(len(rewrites), 'rewrite')} to fit; peak {peak}, step {step} (predicted for {settings.priced_for})"
    log.info("%s: %s", name, told)
    return RewriteChoice(rewrites, found.best.problem.names(found.best.order))


def inside_inductor(full_compilation: GraphPass, settings: Settings) -> GraphPass:
    """The pass that compiles the whole graph, with our plug-in switched on while Inductor runs; under its name.

    Inductor orders a graph that it lowers anew; only what is ordered after its fusion stays.
    """

    @wraps(_function(full_compilation))
    def compile_whole_graph(*arguments: Any, **named: Any) -> fx.GraphModule:
        with enabled(**plug_in_arguments(settings)):
            return mark(full_compilation(*arguments, **named))

    return compile_whole_graph


def mark(gm: fx.GraphModule) -> fx.GraphModule:
    """Note on the graph that its order is ours; returns it."""
    gm.graph.output_node().meta[_MARK] = True
    return gm


def is_marked(gm: fx.GraphModule) -> bool:
    """Tell whether our pass has seen this graph, in this process or where it was precompiled."""
    return _MARK in gm.graph.output_node().meta


# Our pass in a list of torchtitan's: before the first that compiles, or inside Inductor where that compiles all.


def with_ours(passes: Sequence[GraphPass], compile_config: Any, settings: Settings) -> list[GraphPass]:
    """Return a list of torchtitan's passes with ours in its place.

    Args:
        passes: Of a whole step, or of a graph of GraphPP.
        compile_config: torchtitan's ``GraphTrainerCompileConfig``.
        settings: Of the job.
    """
    final = final_inductor_compile_passes(compile_config, use_cudagraph=True)
    compiling = {_function(each) for each in [*final, cudagraph_pass]}
    place = next((k for k, each in enumerate(passes) if _function(each) in compiling), len(passes))
    before, after = list(passes[:place]), list(passes[place:])
    if after and _function(after[0]) is full_inductor_compilation_pass:
        if settings.fits:
            warn("overlap_sched keeps no limit in this job: it fits no step that Inductor compiles as a whole.")
        return [*before, inside_inductor(after[0], settings), *after[1:]]
    return [*before, partial(overlap_sched_pass, settings=settings), *after]


def with_ours_or_not(passes: list[GraphPass], compile_config: Any, settings: Settings) -> list[GraphPass]:
    """As :func:`with_ours`; the list as it was, with a warning, where that fails: without us the job runs as well."""
    try:
        return with_ours(passes, compile_config, settings)
    except Exception as error:
        warn("overlap_sched leaves torchtitan's passes as they are", error)
        return passes


def _function(graph_pass: Any) -> Any:
    """For torchtitan a pass is a function with a name, or a ``partial`` of one."""
    return graph_pass.func if isinstance(graph_pass, partial) else graph_pass


# What is to be known of a graph of GraphPP before it is ordered: its name, and whom it meets.


def stage_name(gm: fx.GraphModule) -> str:
    """Name a graph of GraphPP, the same on all ranks of its stage: ``"stage 0 bw_di"``; ``""``: it is none.

    As ``graph_builder._annotate_graph_pp_graph`` of torchtitan calls it.
    """
    found = gm.graph.output_node().meta
    called, stage = found.get("graph_pp_callable"), found.get("graph_pp_stage_index")
    return "" if called is None or stage is None else f"stage {stage} {called}"


def strangers(gm: fx.GraphModule, ranks: Sequence[int]) -> list[int]:
    """List the ranks with which a graph communicates though they are not among those that are asked, ascending."""
    groups = [one for node in gm.graph.nodes for launched in launched_by(node) for one in launched.groups]
    found = (live_ranks(name if live is None else live) or () for name, live in groups)
    return sorted({rank for each in found for rank in each} - set(ranks))


# How a job's graphs are scheduled: what came with its configuration, else what is switched on, else the defaults.


TARGET = "overlap_sched.titan.options"
"""What ``--override.imports`` names."""


def settings_of(config: Any) -> Settings:
    """The settings of a job: what ``override.imports`` of torchtitan's ``GraphTrainer.Config`` gives to :data:`TARGET`.

    Without any, those of :func:`overlap_sched.enable` count, if that was called.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    settings = replace(current_settings() or Settings(), stage="titan", notes=())
    for entry in config.override.imports:
        target, given = (entry, {}) if isinstance(entry, str) else entry
        if target == TARGET and given:
            settings = with_given(settings, given)
    return settings


def with_given(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Settings with what a job's configuration says: fields of ``Options``, and a limit to fit its step to.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}  # of JSON
    limits: dict[str, Any] = {name: options.pop(name, None) for name in ("memory_limit", "max_slowdown")}
    if any(limit is not None for limit in limits.values()):
        settings = replace(settings, **limits)
    return replace(settings, options=options_from(options)) if options else settings


def plug_in_arguments(settings: Settings) -> dict[str, Any]:
    """The same settings as :func:`overlap_sched.enable` takes them, for the graphs that Inductor compiles."""
    names = ("options", "cost", "model", "ranks_per_node", "cluster", "ranks", "timeout_s")
    return {name: getattr(settings, name) for name in names}
