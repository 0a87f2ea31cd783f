"""Does Inductor call us? Where it does not although we are on: who is in the way, and how to mend it.

Settings of ``torch._inductor.config`` are anybody's: code that runs after ``enable()`` may set them anew, as
torchtitan's compile backend does, and a ``torch.compile(options=...)`` of its own wins over them. And a backend that
does not lower with Inductor (``aot_eager``) reads none of them.
"""

from typing import Any

from torch._inductor import config

from overlap_sched.inductor.console import rank, warn
from overlap_sched.inductor.post_grad import PostGradPass
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.sessions import Session
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.settled import settled

PASSES = "reorder_for_compute_comm_overlap_passes"
PASSES_ON = "reorder_for_compute_comm_overlap"
POST_GRAD = "post_grad_custom_post_pass"
COMPETING = "aten_distributed_optimizations.enable_overlap_scheduling"
"""A reorderer of torch that runs before us, off while we run: it makes fusion worse by dependencies that it inserts."""


def look(session: Session, settings: Settings) -> None:
    """Look at what was compiled while we are on with these settings."""
    if not session.graphs or session.ours:
        return
    found = in_the_way(settings)
    if found is not None:
        tell_of(found, session.graphs)
    elif session.cached:
        settled.from_cache(session.graphs)
    elif session.backend is not None and not lowers(session.backend):
        why = (
            f"backend {backend_name(session.backend)!r} never calls it: use torch.compile's default backend, or "
            "backend='overlap_sched', which runs graphs without lowering them"
        )
        settled.pass_by(why, session.graphs)


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
    settled.pass_by("other code has switched it off", graphs)
    if rank() == 0:
        warn(
            f"overlap_sched is switched on, but Inductor does not call it: {found}. Graphs are in the order that torch "
            "alone gives them. Other code has set that since, or torch.compile's own options do. Call "
            "overlap_sched.enable() after that code, or give the settings to torch.compile: "
            "options=overlap_sched.inductor_options()."
        )


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
