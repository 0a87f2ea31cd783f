"""Switch it on and off: one line, and off again restores every setting.

with overlap_sched.enabled(options):      # around the first forward and backward: that is when torch compiles
    train_step(model, batch)

overlap_sched.enable(options)             # until overlap_sched.disable()

torch.compile(model, options=overlap_sched.inductor_options(options))

While it is on, gathers over gloo go around a fault of torch (:mod:`~overlap_sched.inductor.gloo`). With
``inductor_options`` nothing is on: enter ``safe_gathers()`` yourself where compiled graphs run over gloo.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch.distributed as dist
from torch._inductor import config

from overlap_sched.cost import CostModel
from overlap_sched.errors import OptionsError
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.inductor.identity import Settings
from overlap_sched.inductor.post_grad import PostGradPass
from overlap_sched.inductor.reporting import warn
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.options import Options

PASSES = "reorder_for_compute_comm_overlap_passes"
PASSES_ON = "reorder_for_compute_comm_overlap"
POST_GRAD = "post_grad_custom_post_pass"
COMPETING = (
    "aten_distributed_optimizations.enable_overlap_scheduling",
    "aten_distributed_optimizations.enable_simple_overlap",
    "enable_simple_overlap",
)
"""Reorderers of torch, some only in newer versions: one after us would undo our order, one before us makes fusion
worse by the dependencies that it inserts."""

_on: list[tuple[Settings, dict[str, Any], ExitStack]] = []
"""What is switched on, innermost last: the settings, the values that they replaced, what else is to be undone."""


def inductor_options(
    options: Options | None = None,
    *,
    stage: Literal["inductor", "post_grad"] = "inductor",
    cost: Cost | None = None,
    model: CostModel | None = None,
    ranks_per_node: int = 8,
) -> dict[str, Any]:
    """Settings of ``torch._inductor.config``, for ``torch.compile(model, options=...)``.

    Args:
        options: How to schedule; ``None``: the defaults (zero headroom).
        stage: ``"inductor"`` (default): behind fusion, where an order survives to the generated code. ``"post_grad"``:
            on the FX graph before lowering.
        cost: Microseconds of an FX node, or ``None`` to leave it to ``model``. With a function torch compiles without
            its caches, unless it has a ``uuid()``.
        model: Cost model; an H100 in nodes of eight by default.
        ranks_per_node: Consecutive ranks that share a node.

    Raises:
        OptionsError: There is no such stage, or the ``tracker`` memory model was asked for behind fusion.
    """
    return _changes(_settings(options, stage, cost, model, ranks_per_node), stage)[1]


@contextmanager
def enabled(
    options: Options | None = None,
    *,
    stage: Literal["inductor", "post_grad"] = "inductor",
    cost: Cost | None = None,
    model: CostModel | None = None,
    ranks_per_node: int = 8,
) -> Iterator[None]:
    """Schedule what is compiled inside the block; see :func:`inductor_options` for the arguments.

    torch compiles when a function is called first, its backward when that is: both belong into the block. What has been
    compiled before stays as it is.
    """
    _switch_on(*_changes(_settings(options, stage, cost, model, ranks_per_node), stage))
    depth = len(_on)
    try:
        yield
    finally:
        while len(_on) >= depth:
            _switch_off()


def enable(
    options: Options | None = None,
    *,
    stage: Literal["inductor", "post_grad"] = "inductor",
    cost: Cost | None = None,
    model: CostModel | None = None,
    ranks_per_node: int = 8,
) -> None:
    """Schedule all that is compiled until :func:`disable`; again: with the new options."""
    settings = _settings(options, stage, cost, model, ranks_per_node)
    disable()
    _switch_on(*_changes(settings, stage))


def disable() -> None:
    """Restore every setting that :func:`enable` has changed; nothing where it is off."""
    while _on:
        _switch_off()


def current_settings() -> Settings | None:
    """What is switched on; ``None``: nothing."""
    return _on[-1][0] if _on else None


def _settings(
    options: Options | None, stage: str, cost: Cost | None, model: CostModel | None, ranks_per_node: int
) -> Settings:
    if stage not in ("inductor", "post_grad"):
        raise OptionsError(f"stage is {stage!r}; it is 'inductor' or 'post_grad'.")
    options = options or Options()
    if stage == "inductor" and options.memory_model != "runtime":
        raise OptionsError(
            f"memory_model is {options.memory_model!r}, but behind Inductor's fusion memory is counted as it is at run "
            "time. Leave it at 'runtime', or schedule before lowering (stage='post_grad')."
        )
    return Settings(options, cost, model, ranks_per_node)


def _changes(settings: Settings, stage: str) -> tuple[Settings, dict[str, Any]]:
    """The settings with notes on what they change, and the changes."""
    changes: dict[str, Any] = {}
    notes: list[str] = []
    known = config.get_config_copy()
    for name in COMPETING:
        if name in known:
            changes[name] = False
            if known[name]:
                notes.append(f"torch's {name} is off")
    earlier = list(known[PASSES]) if known[PASSES_ON] else []
    theirs = [p for p in earlier if callable(p) and not isinstance(p, SchedulerPass)]
    notes += [f"torch's pass {p!r} is off" for p in earlier if isinstance(p, str)]
    notes += [f"{getattr(p, '__name__', type(p).__name__)} runs before" for p in theirs]
    if stage == "post_grad":
        before = known[POST_GRAD]
        settings = replace(settings, notes=(*notes, "Inductor reorders what it lowers: the order survives in part"))
        changes[POST_GRAD] = PostGradPass(settings, None if isinstance(before, PostGradPass) else before)
        changes[PASSES_ON], changes[PASSES] = bool(theirs), theirs
        return settings, changes
    if known["deterministic"]:
        notes.append("torch._inductor.config.deterministic is on: torch runs no pass behind fusion")
        warn(
            "overlap_sched cannot run: torch._inductor.config.deterministic is on, with which torch runs no pass "
            "behind fusion, so orders stay as they are. Turn it off, or schedule before lowering (stage='post_grad')."
        )
    settings = replace(settings, notes=tuple(notes))
    changes[PASSES_ON], changes[PASSES] = True, [*theirs, SchedulerPass(settings)]
    if isinstance(known[POST_GRAD], PostGradPass):
        changes[POST_GRAD] = known[POST_GRAD].before
    return settings, changes


def _switch_on(settings: Settings, changes: dict[str, Any]) -> None:
    before = {name: getattr(config, name) for name in changes}
    undo = ExitStack()
    if dist.is_available():
        undo.enter_context(safe_gathers())
    _on.append((settings, before, undo))
    for name, value in changes.items():
        setattr(config, name, value)


def _switch_off() -> None:
    _, before, undo = _on.pop()
    undo.close()
    for name, value in before.items():
        setattr(config, name, value)
