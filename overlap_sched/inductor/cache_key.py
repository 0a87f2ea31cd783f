"""One name for all that an order depends on besides the graph, so that torch's caches never serve a stale order.

torch hashes a graph together with its settings, our pass among them, and with a cache hit the pass is not called. What
has no stable name (a user's own function of costs) is refused, and torch then compiles without its caches.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import overlap_sched
from overlap_sched.cost import CostModel
from overlap_sched.distributed import TIMEOUT_S
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor.reporting import Stage, several_ranks
from overlap_sched.options import Options


@dataclass(frozen=True)
class Settings:
    """How graphs are scheduled while a plug-in is on.

    Attributes:
        options: How to schedule.
        stage: ``"inductor"`` (default): behind fusion, where an order survives to the generated code. ``"post_grad"``:
            on the FX graph before lowering. ``"backend"``: on the FX graph that runs.
        cost: Microseconds of an FX node, or ``None`` to leave it to ``model``. With a function torch compiles without
            its caches, unless it has a ``uuid()``.
        model: Cost model; an H100 in nodes of eight by default.
        ranks_per_node: Consecutive ranks that share a node.
        ranks: Those who compile the graphs that this one does and must agree with it, the same on each of them; by
            default all. For pipelines, where each stage has graphs of its own.
        timeout_s: How long to wait for them (seconds), see :data:`overlap_sched.distributed.TIMEOUT_S`.
        notes: What was switched off for it; goes into the reports.
    """

    options: Options = field(default_factory=Options)
    stage: Stage = "inductor"
    cost: Cost | None = None
    model: CostModel | None = None
    ranks_per_node: int = 8
    ranks: Sequence[int] | None = None
    timeout_s: float = TIMEOUT_S
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
    try:
        if several_ranks() and settings.options.agreement != "none":
            return None
        parts = [_package(), torch.__version__, repr(settings.options), str(settings.ranks_per_node)]
        names = [_name(part) for part in (settings.cost, settings.model)]
        if None in names:
            return None
        return hashlib.sha256("\n".join([*parts, *map(str, names)]).encode()).hexdigest()
    except Exception:  # a user's uuid(), files of this package that cannot be read
        return None


def uuid_after(before: Any, own: str | None) -> str | None:
    """The name of two passes that run one after the other; ``before`` is ``None``, or has a ``uuid()`` or no name."""
    if before is None or own is None:
        return own
    first = before.uuid() if hasattr(before, "uuid") else None
    return None if first is None else f"{first} {own}"


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
