"""The pass pipeline ``overlap_sched`` of GraphTrainer: torchtitan's own list, with our pass last before it compiles.

    cleanup, memory policy, offload, recomputation, bucketing and prefetch      torchtitan's, as configured
    overlap_sched_pass                                                          decides the order
    regional compilation, kernel annotations, CUDA graphs                       torchtitan's; keep the order

torchtitan's hand-made orders (prefetch by one bucket, dense regions, expert-parallel pairs) are where ours starts and
what stays where ours is not used: so no job launches later, or holds more memory, than by torchtitan alone.
With ``inductor_compilation="full"`` Inductor would order the graph anew: there our plug-in runs inside of it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from torchtitan.experiments.graph_trainer.passes import construct_default_graph_passes
from torchtitan.experiments.graph_trainer.registry import PASS_PIPELINE_REGISTRY

from overlap_sched.errors import UnsupportedError
from overlap_sched.inductor.gloo import safe_gathers_with
from overlap_sched.inductor.reporting import describe_error, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import enabled
from overlap_sched.options import close_to
from overlap_sched.titan.graph_pass import GraphPass, is_marked, plug_in_arguments, settings_of, with_ours_or_not

NAME = "overlap_sched"
"""What ``--compile.pass_pipeline`` names."""


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
    safe_gathers_with(traced)  # gloo only; the trainer holds the step for as long as its graph runs
    if not config.compile.precompile_artifact_dir:
        return with_ours_or_not(default, config.compile, settings_of(config))
    if not is_marked(traced.gm):
        warn(
            f"overlap_sched did nothing: the artifact in {config.compile.precompile_artifact_dir!r} was made "
            "without it. Make it with python -m overlap_sched.titan.precompile, in place of "
            "torchtitan.experiments.graph_trainer.precompile_main and with the same arguments."
        )
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
    elif chosen.mode != "aot_fx_trace":
        or_jit = "" if pipelined else ", or jit with --compile.backend inductor"
        cause = f"it needs --compile.mode aot_fx_trace{or_jit}"
    elif not chosen.enable_passes:
        cause = "--compile.enable_passes is off"
    elif pipelined:
        try:
            cause = order_stages(trainer, settings_of(trainer.config))
        except Exception as error:  # without us the job runs as well
            cause = f"its pipeline is not what we know ({describe_error(error)})"
    if cause is not None:
        warn(f"overlap_sched does nothing in this job: {cause}.")


def tell_if_not_chosen(trainer_class: type) -> None:
    """Have a trainer say when it is built with another pass pipeline: torchtitan takes its own then, without a word."""
    build = trainer_class.__init__  # type: ignore[misc]

    @wraps(build)
    def told(self: Any, config: Any) -> None:
        build(self, config)
        chosen = config.compile.pass_pipeline
        if chosen not in PASS_PIPELINE_REGISTRY:  # somebody's own may run ours
            meant = close_to(chosen, PASS_PIPELINE_REGISTRY) or f" Give --compile.pass_pipeline {NAME}."
            cause = f"with --compile.pass_pipeline {chosen!r} torchtitan takes its own list of passes.{meant}"
            warn(f"overlap_sched does nothing in this job: {cause}")

    trainer_class.__init__ = told  # type: ignore[misc]


# torchtitan's GraphPP: the graphs of pipeline stages are ordered, the multiplexed ones with two chains among them.
#
# GraphPP traces each stage, cuts it into forward, backward, dI and dW, gathers and reductions of parameters, and for
# schedules that run a forward beside a backward (DualPipeV) makes one graph of both, which it only concatenates::
#
# backward of stage 3 |= b =|..wait..|= b =|.......         forward of stage 0 |= f =|..wait..|= f =|
# ordered             |= b =|= f =|= b =|= f =|             each computes while the other communicates
#
# No list of passes is asked for there. But whatever GraphPP compiles goes through
# ``graph_builder.final_inductor_compile_passes``, so while it prepares its graphs that list begins with our pass.
#
# **Who must agree.** Stages have graphs of their own, and another number of them. So a rank agrees with those that hold
# the same stages, and with nobody else: those of its coordinate along the pipeline, which is the outermost dimension of
# torchtitan's mesh. Each graph is also met under its own name: two stages may have the same operators.


def order_stages(trainer: Any, settings: Settings) -> str | None:
    """Have the stage graphs of a trainer ordered when it prepares them; returns why they will not be.

    Args:
        trainer: torchtitan's ``GraphTrainer`` with pipeline parallelism, just built.
        settings: Of the job. A limit is dropped with a warning: there is no whole step to fit.

    Raises:
        UnsupportedError: See :func:`ranks_of_stages`.
        ImportError: This torchtitan has no GraphPP.
    """
    from torchtitan.experiments.graph_trainer.graph_pp import graph_builder

    runtime: Any = getattr(trainer, "pp_schedule", None)
    provider = getattr(runtime, "graph_provider", None)
    if not hasattr(provider, "prepare_graphs") or not hasattr(graph_builder, "final_inductor_compile_passes"):
        return "with pipeline parallelism it needs torchtitan's GraphPP, as torchtitan 0.3.0 has it"
    if settings.fits:
        warn("overlap_sched keeps no limit in this job: in a pipeline there is no whole step to fit.")
        settings = replace(settings, memory_limit=None, max_slowdown=None)
    if settings.ranks is None:
        settings = replace(settings, ranks=ranks_of_stages(trainer.parallel_dims))
    safe_gathers_with(trainer)  # gloo only
    runtime.graph_provider = OrderedStages(provider, settings, graph_builder)
    return None


def ranks_of_stages(dims: Any) -> list[int]:
    """The ranks that hold the same stages as this one, this one among them, ascending.

    Args:
        dims: torchtitan's ``ParallelDims``: ``world_size``, ``pp``, and the mesh of ``"pp"``, of this rank's column.

    Raises:
        UnsupportedError: The pipeline is not the outermost dimension of the mesh.
    """
    mesh = dims.get_mesh("pp")
    column, stride = mesh.mesh.flatten().tolist(), dims.world_size // dims.pp
    if column != [column[0] % stride + k * stride for k in range(dims.pp)]:
        raise UnsupportedError(f"ranks {column} are not a pipeline that is the outermost dimension of a mesh")
    first = mesh.get_local_rank() * stride
    return list(range(first, first + stride))


@dataclass
class OrderedStages:
    """torchtitan's provider of stage graphs, ours in its place: what it compiles is ordered first.

    Attributes:
        provider: torchtitan's.
        settings: Of the job, with the ranks that hold the same stages.
        builder: torchtitan's module that compiles the graphs.
    """

    provider: Any
    settings: Settings
    builder: Any

    def prepare_graphs(self, *schedule: Any, **named: Any) -> Any:
        """Prepare them as torchtitan does, once per step; it compiles in the first.

        Meanwhile the list of passes of every graph that it compiles has ours before what compiles.
        """
        theirs = self.builder.final_inductor_compile_passes

        def ours_first(compile_config: Any, **how: Any) -> list[GraphPass]:
            return with_ours_or_not(theirs(compile_config, **how), compile_config, self.settings)

        self.builder.final_inductor_compile_passes = ours_first
        try:
            return self.provider.prepare_graphs(*schedule, **named)
        finally:
            self.builder.final_inductor_compile_passes = theirs
