"""One cache key for all that an order depends on besides the graph: torch's caches never serve a stale order.

torch hashes a graph together with its settings, our pass among them, and with a cache hit the pass is not called. What
has no stable key (a user's own function of costs) is refused, and torch then compiles without its caches.
"""

import hashlib
import sys
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import overlap_sched
from overlap_sched.fx.graphs import marks_of, module_of
from overlap_sched.fx.operators import declarations
from overlap_sched.inductor.agree import asks
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import replayed_allocator


def settings_key(settings: Settings) -> str | None:
    """The cache key of the settings and of this package's code; ``None``: there is none, and nothing may be cached.

    Functions and models have no key unless they offer ``uuid()`` themselves; of dataclasses it is their fields. Where
    ranks must agree, what is cached depends on that, see :mod:`overlap_sched.inductor.cached_orders`.
    """
    try:
        parts = [_package(), torch.__version__, repr(settings.options), str(settings.ranks_per_node)]
        parts += [repr((settings.memory_limit, settings.max_slowdown, settings.follows)), repr(declarations())]
        parts += [_ranks(settings), repr(replayed_allocator(settings.options)), _pinned(settings)]
        keys = [_part_key(part) for part in (settings.cost, settings.model, settings.where)]
        if None in keys:
            return None
        return hashlib.sha256("\n".join([*parts, *map(str, keys)]).encode()).hexdigest()
    except Exception:  # a user's uuid(), files of this package that cannot be read
        return None


def key_after(before: Any, own: str | None) -> str | None:
    """The cache key of two passes in a row; ``before`` may be ``None``, and may have no ``uuid()``."""
    if before is None or own is None:
        return own
    first = before.uuid() if hasattr(before, "uuid") else None
    return None if first is None else f"{first} {own}"


def _ranks(settings: Settings) -> str:
    """Who must agree; ``""``: nobody."""
    return f"{dist.get_world_size()} ranks, {settings.ranks} agree" if asks(settings) else ""


def _pinned(settings: Settings) -> str:
    """Modules and marks of the graph that torch is making a key of, where there are pins; else ``""``.

    Metadata of nodes is in no key of torch's, and a pass is not told which graph it is asked for. So it is looked up
    where torch holds it: in the callers of this function.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        graph = frame.f_locals.get("gm")
        if isinstance(graph, torch.fx.GraphModule):
            parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]  # checkpointed bodies
            metas = [node.meta for part in parts for node in part.graph.nodes]
            marks = [marks_of(meta) for meta in metas]
            modules = [module_of(meta) for meta in metas] if settings.options.pins or any(marks) else []
            return repr((marks, modules)) if modules else ""
    return ""


def _part_key(part: Any) -> str | None:
    own = getattr(part, "uuid", None)
    if callable(own):
        return str(own())
    return repr(part) if part is None or is_dataclass(part) else None


@cache
def _package() -> str:
    """Version and contents of this package: an edited checkout is another version."""
    root = Path(overlap_sched.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        installed = version("overlap_sched")
    except PackageNotFoundError:
        installed = ""
    return f"{installed} {digest.hexdigest()}"
