"""The FX front end as a pass of Inductor, before lowering.

Inductor reorders what it lowers, so an order that is set here survives only in part: the default under Inductor is
:class:`~overlap_sched.inductor.scheduler_pass.SchedulerPass`. This one is for settings in which torch runs no passes
after fusion (``torch._inductor.config.deterministic``), and for those who lower graphs themselves.
"""

from dataclasses import dataclass

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from overlap_sched.inductor.agree import asks
from overlap_sched.inductor.cache_key import key_after, settings_key
from overlap_sched.inductor.choosing import rewrite_and_schedule
from overlap_sched.inductor.settings import Settings


@dataclass(frozen=True)
class PostGradPass(CustomGraphPass):
    """A pass for ``torch._inductor.config.post_grad_custom_post_pass``.

    Attributes:
        settings: How to schedule.
        before: The pass that was set before; it runs first.
    """

    settings: Settings
    before: CustomGraphPass | None = None

    def __call__(self, graph: fx.Graph) -> None:
        """Reorder the graph in place, or leave it as it was."""
        if self.before is not None:
            self.before(graph)
        rewrite_and_schedule(graph, self.settings)

    def uuid(self) -> str | None:
        """Name of this package's version and of all settings, for torch's caches; ``None``: compile without them.

        So it is where ranks must agree: nothing tells, of code in a cache, in which order this pass had left its graph.
        """
        if asks(self.settings):
            return None
        return key_after(self.before, settings_key(self.settings))
