"""Our pass in a list of torchtitan's: before the first that compiles, or inside Inductor where that compiles all."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torchtitan.experiments.graph_trainer.cudagraph import cudagraph_pass
from torchtitan.experiments.graph_trainer.inductor_passes import full_inductor_compilation_pass
from torchtitan.experiments.graph_trainer.passes import final_inductor_compile_passes

from overlap_sched.inductor.reporting import warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.titan.graph_pass import GraphPass, inside_inductor, overlap_sched_pass


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
        return [*before, _inside_inductor(after[0], settings), *after[1:]]
    return [*before, partial(overlap_sched_pass, settings=settings), *after]


def _inside_inductor(full: GraphPass, settings: Settings) -> GraphPass:
    """For torchtitan a pass is a function with a name, or a ``partial`` of one."""
    if isinstance(full, partial):
        return partial(inside_inductor(full.func, settings), *full.args, **full.keywords)
    return inside_inductor(full, settings)


def _function(graph_pass: Any) -> Any:
    return graph_pass.func if isinstance(graph_pass, partial) else graph_pass
