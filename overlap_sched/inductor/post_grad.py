"""Our passes of the FX graph that Inductor is about to lower, and whether Inductor calls us behind its fusion.

Inductor reorders what it lowers, so an order that is set here survives only in part: the default under Inductor is
:class:`~overlap_sched.inductor.scheduler_pass.SchedulerPass`. What runs here: rewrites (:class:`RewritePass`); the
whole of it for settings in which torch runs no passes after fusion, and for those who lower graphs themselves
(:class:`PostGradPass`); a look at who keeps Inductor from calling us (:class:`DeterministicWatch`).

Settings of ``torch._inductor.config`` are anybody's: code that runs after ``enable()`` may set them anew, as
torchtitan's compile backend does, and a ``torch.compile(options=...)`` of its own wins over them.
``torch.use_deterministic_algorithms(True)``, in which torch calls no pass of others after fusion, may come after it,
too. Options given to ``torch.compile`` hold only while it compiles. So all that is looked at when a graph is compiled.
A backend that does not lower with Inductor (``aot_eager``) reads none of them.
"""

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from overlap_sched.fx.apply import Report
from overlap_sched.fx.operators import traits_of
from overlap_sched.inductor import names
from overlap_sched.inductor.agree import asks
from overlap_sched.inductor.cache_key import key_after, settings_key
from overlap_sched.inductor.cached_orders import watched
from overlap_sched.inductor.console import rank, warn
from overlap_sched.inductor.fx_stage import graph_name
from overlap_sched.inductor.reporting import GraphReport, record, record_cached
from overlap_sched.inductor.rewriting import Choose, rewrite_and_schedule, rewrite_fx
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.sessions import Session
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.summary import tally

PASSES = "reorder_for_compute_comm_overlap_passes"
PASSES_ON = "reorder_for_compute_comm_overlap"
POST_GRAD = "post_grad_custom_post_pass"
COMPETING = "aten_distributed_optimizations.enable_overlap_scheduling"
"""A reorderer of torch that runs before us, off while we run: it makes fusion worse by dependencies that it inserts."""
NOTE = "torch._inductor.config.deterministic is on: torch calls no pass of others after fusion"
NOT_RUN = (
    "torch._inductor.config.deterministic is on. torch then calls no pass of others after fusion, so the order is the "
    "one that torch alone gives it. Turn it off, or schedule before lowering (stage='post_grad')."
)


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


@dataclass(frozen=True)
class RewritePass(CustomGraphPass):
    """A pass for ``torch._inductor.config.post_grad_custom_post_pass``: rewrites, before Inductor lowers.

    Attributes:
        settings: How.
        choose: What to do.
        before: The pass that was set before; it runs first.
    """

    settings: Settings
    choose: Choose
    before: CustomGraphPass | None = None

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite the graph in place, or leave it as it was."""
        if self.before is not None:
            self.before(graph)
        if config.deterministic or in_the_way(self.settings) is not None:  # no order is set behind fusion
            return
        rewrite_fx(graph, self.settings, self.choose)

    def uuid(self) -> str | None:
        """A name for torch's caches; ``None``: compile without them.

        So it is where ranks must agree, and torch does not ask us before it uses code: one that found a rewritten graph
        in a cache would not take part.
        """
        if not watched(self.settings):
            return None
        return key_after(self.before, settings_key(self.settings))


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
            warn("overlap_sched could not inspect a graph", error)

    def uuid(self) -> str | None:
        """A name for torch's caches; ``None`` where the other pass has none."""
        return key_after(self.before, "overlap_sched watches")


def _communicates(graph: fx.Graph) -> bool:
    return any(node.op == "call_function" and traits_of(node.target).comm is not None for node in graph.nodes)


def look(session: Session, settings: Settings) -> None:
    """Look at what was compiled while we are on with these settings."""
    if session.ours or not (session.graphs or session.cached):
        return
    found = in_the_way(settings)
    if session.cached and found is None and not asks(settings):  # else each is recorded when the ranks have agreed
        record_cached(names.graph_name("graph" if session.graphs else "backward"), settings.stage)
    if not session.graphs:
        return
    if found is not None:
        tell_of(found, session.graphs)
    elif session.cached:
        tally.from_cache(session.graphs)
    elif session.backend is not None and not lowers(session.backend):
        why = (
            f"backend {backend_name(session.backend)!r} never calls it: use torch.compile's default backend, or "
            "backend='overlap_sched', which runs graphs without lowering them"
        )
        tally.pass_by(why, session.graphs)


def lowers(backend: Any) -> bool:
    """Is it Inductor?"""
    return getattr(backend, "compiler_name", None) == "inductor" or _module(backend).startswith("torch._inductor")


def backend_name(backend: Any) -> str:
    """As it was given to ``torch.compile``; a function of somebody's own with its module."""
    name = getattr(backend, "compiler_name", None)
    inner = getattr(backend, "compiler_fn", backend)
    if isinstance(name, str) and _module(inner).startswith("torch."):
        return name
    return _named(inner).strip("'")


def in_the_way(settings: Settings) -> str | None:
    """Which setting keeps Inductor from calling us, as they are now; ``None``: none does."""
    if settings.stage == "post_grad":
        now: Any = getattr(config, POST_GRAD)
        while now is not None and not isinstance(now, PostGradPass) and hasattr(now, "before"):
            now = now.before
        return None if isinstance(now, PostGradPass) else f"torch._inductor.config.{POST_GRAD} is {_named(now)}"
    if not getattr(config, PASSES_ON):
        after = getattr(config, POST_GRAD)
        theirs = "" if after is None or _ours(after) else f", and {POST_GRAD} is {_named(after)}"
        return f"torch._inductor.config.{PASSES_ON} is False{theirs}"
    passes = getattr(config, PASSES)
    if not any(isinstance(p, SchedulerPass) for p in passes):
        return f"torch._inductor.config.{PASSES} is [{', '.join(map(_named, passes))}]"
    return None


def tell_of(found: str | None, graphs: int = 1) -> None:
    """Warn on rank 0, and count the graphs; nothing where nothing was found in the way."""
    if found is None:
        return
    tally.pass_by("other code has switched it off", graphs)
    if rank() == 0:
        warn(
            f"overlap_sched is switched on, but Inductor does not call it: {found}. Graphs are in the order that torch "
            "alone gives them. Other code has set that since, or torch.compile's own options do. Call "
            "overlap_sched.enable() after that code, or give the settings to torch.compile: "
            "options=overlap_sched.inductor_options()."
        )


def _named(thing: Any) -> str:
    """A pass or function by its name and where it is from."""
    if thing is None or isinstance(thing, str):
        return repr(thing)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__qualname__.rpartition('<locals>.')[2]} of {_module(thing)}"


def _module(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _ours(thing: Any) -> bool:
    return _module(thing).startswith("overlap_sched.")
