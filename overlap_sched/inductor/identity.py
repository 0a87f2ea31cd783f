"""One name for all that an order depends on besides the graph, so that torch's caches never serve a stale order.

torch hashes a graph together with its settings, our pass among them, and with a cache hit the pass is not called. What
has no stable name (a user's own function of costs) is refused, and torch then compiles without its caches.
"""

import hashlib
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import overlap_sched
from overlap_sched.cost import CostModel
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor.reporting import several_ranks
from overlap_sched.options import Options


@dataclass(frozen=True)
class Settings:
    """How graphs are scheduled while a plug-in is on.

    Attributes:
        options: How to schedule.
        cost, model, ranks_per_node: As for :func:`overlap_sched.fx.lift`.
        notes: What was switched off for it; goes into the reports.
    """

    options: Options
    cost: Cost | None = None
    model: CostModel | None = None
    ranks_per_node: int = 8
    notes: tuple[str, ...] = ()

    @property
    def costs(self) -> dict[str, Any]:
        """The arguments with which a graph is lifted."""
        return {"cost": self.cost, "model": self.model, "ranks_per_node": self.ranks_per_node}


def uuid(settings: Settings) -> str | None:
    """A stable name of the settings and of this package's code; ``None``: there is none, and nothing may be cached.

    Without a name are functions and models that do not offer ``uuid()`` themselves (dataclasses are named by their
    fields). And with several ranks that must agree nothing is cached: a rank with a hit would not ask the others.
    """
    if several_ranks() and settings.options.agreement != "none":
        return None
    parts = [_package(), torch.__version__, repr(settings.options), str(settings.ranks_per_node)]
    for part in (settings.cost, settings.model):
        name = _name(part)
        if name is None:
            return None
        parts.append(name)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _name(part: Any) -> str | None:
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
