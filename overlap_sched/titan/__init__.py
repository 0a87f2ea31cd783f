"""Plug-in of torchtitan's GraphTrainer: the whole training step, forward and backward in one graph, is reordered.

    --override.imports overlap_sched.titan.options --compile.pass_pipeline overlap_sched

The first argument makes torchtitan import this package, which registers the pass pipeline; the second one chooses it.
Options of :class:`overlap_sched.Options` go with the first: ``'overlap_sched.titan.options={"headroom": "1GiB"}'``.
A module of configs of your own needs only ``import overlap_sched.titan``.

- :mod:`~overlap_sched.titan.pipeline`: torchtitan's list of passes with ours in its place; the same for the pipelines
  of GraphPP.
- :mod:`~overlap_sched.titan.precompile`: torchtitan's precompilation with our pass.
- :mod:`~overlap_sched.titan.graph_pass`: our pass, which fits a step to a limit, and orders it; inside Inductor where
  that compiles the whole graph. The options of a job.

Needs torchtitan (0.3.0 is the one that we know). Nothing else in this package imports it.
"""

from typing import Any

from torchtitan.config.override import override
from torchtitan.experiments.graph_trainer.registry import register_pass_pipeline, register_post_init_hook
from torchtitan.experiments.graph_trainer.trainer import GraphTrainer
from torchtitan.tools.profiler import Profiler

from overlap_sched.inductor.settings import Settings
from overlap_sched.titan.graph_pass import with_given
from overlap_sched.titan.pipeline import NAME, passes_of, start, tell_if_not_chosen

__all__ = ["NAME", "options", "passes_of"]

register_pass_pipeline(NAME)(passes_of)
register_post_init_hook(NAME)(start)
tell_if_not_chosen(GraphTrainer)


@override(target=Profiler.Config, description="Options of overlap_sched; the config stays as it is")
def options(config: Profiler.Config, **given: Any) -> Profiler.Config:
    """Check the options given with ``--override.imports``; no config is replaced.

    An override is torchtitan's way to have a module imported from its command line. It must name a config that is there
    once in every trainer: the profiler's, returned as it is.

    Args:
        config: torchtitan's.
        **given: Fields of :class:`overlap_sched.Options`; ``memory_limit`` or ``max_slowdown``, as of
            :func:`overlap_sched.enable`.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    with_given(Settings(), given)
    return config
