"""torchtitan's GraphPP: the graphs of pipeline stages are ordered, the multiplexed ones with two chains among them.

GraphPP traces each stage, cuts it into forward, backward, dI and dW, gathers and reductions of parameters, and for
schedules that run a forward beside a backward (DualPipeV) makes one graph of both, which it only concatenates::

    backward of stage 3 |= b =|..wait..|= b =|.......         forward of stage 0 |= f =|..wait..|= f =|
    ordered             |= b =|= f =|= b =|= f =|             each computes while the other communicates

No list of passes is asked for there. But whatever GraphPP compiles goes through
``graph_builder.final_inductor_compile_passes``, so while it prepares its graphs that list begins with our pass.

**Who must agree.** Stages have graphs of their own, and another number of them. So a rank agrees with those that hold
the same stages, and with nobody else: those of its coordinate along the pipeline, which is the outermost dimension of
torchtitan's mesh. Each graph is also met under its own name: two stages may have the same operators.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from overlap_sched.errors import UnsupportedError
from overlap_sched.inductor.gloo import safe_gathers_with
from overlap_sched.inductor.reporting import warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.titan.graph_pass import GraphPass
from overlap_sched.titan.listed import with_ours


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

    runtime = getattr(trainer, "pp_schedule", None)
    provider = getattr(runtime, "graph_provider", None)
    if runtime is None or not hasattr(provider, "prepare_graphs"):
        return "with pipeline parallelism it needs torchtitan's GraphPP"
    if not hasattr(graph_builder, "final_inductor_compile_passes"):
        return "this torchtitan compiles the graphs of a pipeline in another way than we know"
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
        lists: Lists of passes that have begun with ours; of every graph one.
        prepared: GraphPP has prepared its graphs.
    """

    provider: Any
    settings: Settings
    builder: Any
    lists: int = 0
    prepared: bool = False

    def prepare_graphs(self, *schedule: Any, **named: Any) -> Any:
        """Prepare them as torchtitan does, once per step; it compiles in the first."""
        with self._ours_first():
            prepared = self.provider.prepare_graphs(*schedule, **named)
        if not self.prepared and not self.lists:
            warn("overlap_sched does nothing in this job: GraphPP has compiled its graphs without a list of passes.")
        self.prepared = True
        return prepared

    @contextmanager
    def _ours_first(self) -> Iterator[None]:
        """Inside, the list of passes of every graph that GraphPP compiles has ours before what compiles."""
        theirs = self.builder.final_inductor_compile_passes

        def ours_first(compile_config: Any, **how: Any) -> list[GraphPass]:
            found: list[GraphPass] = theirs(compile_config, **how)
            self.lists += 1
            try:
                return with_ours(found, compile_config, self.settings)
            except Exception as error:  # without us the job runs as well
                warn("overlap_sched leaves torchtitan's passes as they are", error)
                return found

        self.builder.final_inductor_compile_passes = ours_first
        try:
            yield
        finally:
            self.builder.final_inductor_compile_passes = theirs
