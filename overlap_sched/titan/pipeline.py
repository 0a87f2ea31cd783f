"""The pass pipeline ``overlap_sched`` of GraphTrainer: torchtitan's own list, with our pass last before it compiles.

    cleanup, memory policy, offload, recomputation, bucketing and prefetch      torchtitan's, as configured
    overlap_sched_pass                                                          decides the order
    regional compilation, kernel annotations, CUDA graphs                       torchtitan's; keep the order

torchtitan's hand-made orders (prefetch by one bucket, dense regions, expert-parallel pairs) are where ours starts and
what stays where ours is not used: so no job launches later, or holds more memory, than by torchtitan alone.
With ``inductor_compilation="full"`` Inductor would order the graph anew: there our plug-in runs inside of it.
"""

from contextlib import ExitStack
from functools import wraps
from typing import Any

from torchtitan.experiments.graph_trainer.passes import construct_default_graph_passes
from torchtitan.experiments.graph_trainer.registry import PASS_PIPELINE_REGISTRY

from overlap_sched.inductor.gloo import safe_gathers_with
from overlap_sched.inductor.reporting import describe_error, warn
from overlap_sched.inductor.switch import enabled
from overlap_sched.options import close_to
from overlap_sched.titan.chosen import plug_in_arguments, settings_of
from overlap_sched.titan.graph_pass import GraphPass, is_marked
from overlap_sched.titan.listed import with_ours
from overlap_sched.titan.stages import order_stages

NAME = "overlap_sched"
"""What ``--compile.pass_pipeline`` names."""
DEFAULT = "default"
"""What it names where it is not given."""


def passes_of(traced: Any, config: Any, *, parallel_dims: Any = None) -> list[GraphPass]:
    """The list of passes for a traced step, as GraphTrainer asks for it.

    Args:
        traced: torchtitan's ``TracedResult``.
        config: Its ``GraphTrainer.Config``.
        parallel_dims: Its ``ParallelDims``.

    Returns:
        With a precompiled artifact torchtitan's list: the order is in the artifact, the same for all ranks, and nothing
        has to be agreed on.
    """
    default: list[GraphPass] = construct_default_graph_passes(traced, config, parallel_dims=parallel_dims)
    try:
        safe_gathers_with(traced)  # gloo only; the trainer holds the step for as long as its graph runs
        if not config.compile.precompile_artifact_dir:
            return with_ours(default, config.compile, settings_of(config))
        if not is_marked(traced.gm):
            warn(
                f"overlap_sched did nothing: the artifact in {config.compile.precompile_artifact_dir!r} was made "
                "without it. Make it with python -m overlap_sched.titan.precompile, in place of "
                "torchtitan.experiments.graph_trainer.precompile_main and with the same arguments."
            )
    except Exception as error:  # without us the job runs as well
        warn("overlap_sched leaves torchtitan's passes as they are", error)
    return default


def start(trainer: Any) -> None:
    """When a trainer is built: switch the plug-in on where torch.compile is used; say where nothing of ours will run.

    With ``--compile.mode jit`` torchtitan overwrites Inductor's settings while it builds the model
    (``jit_backend.get_compile_backend_with_passes``); what it compiles, it compiles in the first step.
    """
    chosen, pipelined = trainer.config.compile, trainer.parallel_dims.pp_enabled
    cause = None
    if chosen.mode == "jit" and not pipelined and chosen.backend == "inductor":
        if settings_of(trainer.config).fits:
            warn("overlap_sched keeps no limit in this job: with --compile.mode jit there is no whole step to fit.")
        switched_on = ExitStack()
        switched_on.enter_context(enabled(**plug_in_arguments(settings_of(trainer.config))))
        trainer.overlap_sched = switched_on  # on for as long as the trainer is there
    elif pipelined and chosen.mode != "aot_fx_trace":
        cause = "with pipeline parallelism it needs --compile.mode aot_fx_trace"
    elif chosen.mode != "aot_fx_trace":
        cause = "it needs --compile.mode aot_fx_trace, or jit with --compile.backend inductor"
    elif not chosen.enable_passes:
        cause = "--compile.enable_passes is off"
    elif pipelined:
        cause = _stages_ordered(trainer)
    if cause is not None:
        warn(f"overlap_sched does nothing in this job: {cause}.")


def _stages_ordered(trainer: Any) -> str | None:
    """Have the graphs of a pipeline's stages ordered; returns why they will not be."""
    try:
        return order_stages(trainer, settings_of(trainer.config))
    except Exception as error:  # without us the job runs as well
        return f"its pipeline is not what we know ({describe_error(error)})"


def tell_if_not_chosen(trainer_class: type) -> None:
    """Have a trainer say when it is built with another pass pipeline: torchtitan takes its own then, without a word."""
    build = trainer_class.__init__  # type: ignore[misc]
    if getattr(build, "tells", False):
        return

    @wraps(build)
    def told(self: Any, config: Any) -> None:
        build(self, config)
        cause = not_chosen(config.compile.pass_pipeline)
        if cause is not None:
            warn(f"overlap_sched does nothing in this job: {cause}")

    told.tells = True  # type: ignore[attr-defined]
    trainer_class.__init__ = told  # type: ignore[misc]


def not_chosen(chosen: str) -> str | None:
    """Why a pipeline of this name does not run ours; ``None``: it does, or is somebody's own, which may."""
    if chosen in PASS_PIPELINE_REGISTRY:
        return None
    if chosen == DEFAULT:
        return f"--compile.pass_pipeline {NAME} is missing."
    meant = close_to(chosen, PASS_PIPELINE_REGISTRY) or f" There are {', '.join(map(repr, PASS_PIPELINE_REGISTRY))}."
    return f"torchtitan knows no pass pipeline {chosen!r} and takes its default.{meant}"
