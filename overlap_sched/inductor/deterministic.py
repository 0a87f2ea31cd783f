"""torch's deterministic mode, in which it calls no pass of others after fusion: reported for each graph, not silent.

``torch.use_deterministic_algorithms(True)`` may come after :func:`overlap_sched.enable`, so it is looked at when a
graph is compiled, by a pass that torch still runs then. So are the settings that switch us on: options given to
``torch.compile`` hold only while it compiles.
"""

from dataclasses import dataclass

from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from overlap_sched.fx.apply import Report
from overlap_sched.fx.operators import traits_of
from overlap_sched.inductor.cache_key import key_after
from overlap_sched.inductor.fx_stage import graph_name
from overlap_sched.inductor.reporting import GraphReport, record, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.watch import COMPETING, in_the_way, tell_of

NOTE = "torch._inductor.config.deterministic is on: torch calls no pass of others after fusion"
NOT_RUN = (
    "torch._inductor.config.deterministic is on. torch then calls no pass of others after fusion, so the order is the "
    "one that torch alone gives it. Turn it off, or schedule before lowering (stage='post_grad')."
)


@dataclass(frozen=True)
class DeterministicWatch(CustomGraphPass):
    """A pass for ``torch._inductor.config.post_grad_custom_post_pass`` that changes nothing.

    Attributes:
        settings: Those of the pass after fusion, which is not going to run.
        before: The pass that was set before; it runs first.
        competing: A reorderer of torch's own is off for us. It is on again for graphs that we do not get.
    """

    settings: Settings
    before: CustomGraphPass | None = None
    competing: bool = False

    def __call__(self, graph: fx.Graph) -> None:
        """Warn where a graph will not be scheduled: not at all, or because other code has switched that off."""
        if self.before is not None:
            self.before(graph)
        try:
            found = in_the_way(self.settings)
            if self.competing:
                setattr(config, COMPETING, config.deterministic or found is not None)
            if config.deterministic and _communicates(graph):
                name = graph_name(graph)
                warn(f"overlap_sched leaves {name!r} as it was: {NOT_RUN}")
                settings = self.settings
                record(GraphReport(name, "inductor", Report(name, reason=NOT_RUN), settings.notes, settings.priced_for))
            elif not config.deterministic:
                tell_of(found)
        except Exception as error:  # what only looks must not stop a compilation
            warn(f"overlap_sched could not inspect a graph: {type(error).__name__}: {error}")

    def uuid(self) -> str | None:
        """A name for torch's caches; ``None`` where the other pass has none."""
        return key_after(self.before, "overlap_sched watches")


def _communicates(graph: fx.Graph) -> bool:
    return any(node.op == "call_function" and traits_of(node.target).comm is not None for node in graph.nodes)
