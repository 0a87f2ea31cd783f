"""Switch it on and off: one line, and off again restores every setting.

with overlap_sched.enabled(options):      # around the first forward and backward: that is when torch compiles
    train_step(model, batch)

overlap_sched.enable(options)             # until overlap_sched.disable()

torch.compile(model, options=overlap_sched.inductor_options(options))

While it is on, gathers over gloo go around a fault of torch (:mod:`~overlap_sched.inductor.gloo`); with
``inductor_options`` for as long as anything holds these options, as the compiled function does.
"""

import atexit
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch
import torch.distributed as dist
from torch._dynamo import convert_frame
from torch._inductor import config

from overlap_sched.cost import CostModel
from overlap_sched.cost.cluster import Cluster
from overlap_sched.distributed.uncompiled import uncompiled, watch_optimizers
from overlap_sched.errors import OptionsError, UnsupportedError
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor.console import rank, say, warn
from overlap_sched.inductor.gloo import safe_gathers, safe_gathers_with
from overlap_sched.inductor.in_force import note_earlier_code, some_graph_moves
from overlap_sched.inductor.partitioning import FitPartitioner
from overlap_sched.inductor.post_grad import (
    COMPETING,
    NOT_RUN,
    NOTE,
    PASSES,
    PASSES_ON,
    POST_GRAD,
    DeterministicWatch,
    PostGradPass,
    RewritePass,
    look,
)
from overlap_sched.inductor.rewriting import planned
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.sessions import listening, observe, sessions_ended
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.summary import tally
from overlap_sched.inductor.versions import knows_torch, refusal
from overlap_sched.options import Options, check_names, options_given, rewrites_wanted

PARTITIONER = "custom_partitioner_fn"

NOTHING_COMPILED = (
    "overlap_sched: nothing was compiled inside of enabled(). torch compiles when a function is called first, and its "
    "backward when that is: both belong into the block. Or call overlap_sched.enable() once, before the first step."
)


class How(TypedDict, total=False):
    """What may be given by name besides the options: fields of :class:`~overlap_sched.inductor.settings.Settings`."""

    stage: Literal["inductor", "post_grad"]
    cost: Cost | None
    model: CostModel | None
    ranks_per_node: int
    cluster: Cluster | str | Path | None
    ranks: Sequence[int] | None
    timeout_s: float
    memory_limit: int | str | None
    max_slowdown: float | None


_following: list[ExitStack] = []
"""How to undo what stays of the last settings where some graph launches in a new sequence."""
_on: list[tuple[Settings, ExitStack]] = []
"""What is switched on, innermost last: the settings, and how to undo them."""


def inductor_options(options: Options | None = None, **how: Unpack[How]) -> dict[str, Any]:
    """Settings of ``torch._inductor.config``, for ``torch.compile(model, options=...)``.

    Args:
        options: How to schedule; ``None``: the defaults (zero headroom).
        **how: ``stage``, ``cost``, ``model``, ``ranks_per_node``, ``cluster``, ``ranks``, ``timeout_s``,
            ``memory_limit`` and ``max_slowdown``, see :class:`~overlap_sched.inductor.settings.Settings`.

    Raises:
        OptionsError: There is no such stage, or the ``tracker`` memory model was asked for after fusion.
        UnsupportedError: With ``strict``: this torch is none that we know. Else torch stays as it is, with a warning.
    """
    _, changes = _changes(_settings("inductor_options", options, how))
    if dist.is_available() and changes:
        owner = changes[PASSES][-1] if isinstance(changes[POST_GRAD], DeterministicWatch) else changes[POST_GRAD]
        safe_gathers_with(owner)
    return changes


@contextmanager
def enabled(options: Options | None = None, **how: Unpack[How]) -> Iterator[None]:
    """Schedule what is compiled inside the block; see :func:`inductor_options` for the arguments.

    torch compiles when a function is called first, its backward when that is: both belong into the block. What has been
    compiled before stays as it is.
    """
    _switch_on(_settings("enabled", options, how))
    depth, before = len(_on), sessions_ended()
    try:
        yield
        if listening() and sessions_ended() == before and not tally.seen and rank() == 0:
            say(NOTHING_COMPILED)
    finally:
        while len(_on) >= depth:
            _switch_off()


def enable(options: Options | None = None, **how: Unpack[How]) -> None:
    """Schedule all that is compiled until :func:`disable`, in every thread; again: with the new options."""
    settings, earlier = _settings("enable", options, how), current_settings()
    disable()
    _switch_on(settings)
    if rank() == 0:
        _say_what_stays(settings, earlier, bool(convert_frame.output_codes.seen_ids))


def disable() -> None:
    """Restore every setting that :func:`enable` has changed; nothing where it is off.

    Where several ranks run a graph with a new launch sequence, our pass stays for what is compiled again and launches
    the same: that follows the sequence. Nothing else is reordered.
    """
    while _on:
        _switch_off()


def current_settings() -> Settings | None:
    """Return the settings that are switched on; ``None``: nothing."""
    return _on[-1][0] if _on else None


def _say_what_stays(settings: Settings, earlier: Settings | None, compiled: bool) -> None:
    """One line where not all graphs will be ordered by these settings."""
    stays = "What has been compiled before keeps its order: "
    if earlier is not None:
        now, before = ({**vars(one.options), **vars(one), "options": 0, "notes": 0} for one in (settings, earlier))
        changed = [f"{name}={now[name]!r} (before: {before[name]!r})" for name in now if now[name] != before[name]]
        if changed:
            keeps = f" {stays}torch.compiler.reset() has it compiled again." if compiled else ""
            say(f"overlap_sched: enable() was called again; from now on {', '.join(changed)}.{keeps}")
    elif compiled:
        mend = "call enable() before the first step, or torch.compiler.reset() behind it to have all compiled again."
        say(f"overlap_sched: enable() was called late. {stays}{mend}", logging.WARNING)


def _settings(call: str, options: Options | None, how: How) -> Settings:
    check_names(call, "", how, How.__annotations__)
    settings = Settings(options_given(options), **how)
    model = settings.options.memory_model
    if settings.stage not in ("inductor", "post_grad"):
        raise OptionsError(f"stage is {settings.stage!r}. It must be 'inductor' or 'post_grad'.")
    if settings.stage == "inductor" and model != "runtime":
        raise OptionsError(
            f"memory_model is {model!r}, but after Inductor's fusion only 'runtime' is supported. "
            "Use 'runtime', or schedule before lowering (stage='post_grad')."
        )
    return settings


def _changes(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    changes: dict[str, Any] = {}
    notes: list[str] = []
    known = config.get_config_copy()
    if settings.stage == "inductor" and not knows_torch():
        if settings.options.strict:
            raise UnsupportedError(refusal())
        warn(f"overlap_sched leaves torch as it is: {refusal()}")
        return settings, {}
    if settings.fits:
        changes |= _partitioner(settings, known)
    if COMPETING in known:
        changes[COMPETING] = False
        if known[COMPETING]:
            notes.append(f"torch's {COMPETING} is turned off")
    earlier = list(known[PASSES]) if known[PASSES_ON] else []
    theirs = [p for p in earlier if callable(p) and not isinstance(p, SchedulerPass)]
    notes += [f"torch's pass {p!r} is turned off" for p in earlier if isinstance(p, str)]
    notes += [f"{getattr(p, '__name__', type(p).__name__)} runs before this pass" for p in theirs]
    before, competing = known[POST_GRAD], bool(known.get(COMPETING))
    while isinstance(before, PostGradPass | DeterministicWatch | RewritePass):  # ours, of an outer block
        competing = competing or getattr(before, "competing", False)
        before = before.before
    if settings.stage == "post_grad":
        settings = replace(
            settings, notes=(*notes, "Inductor reorders the graph as it lowers it: only part of the order survives")
        )
        changes[POST_GRAD] = PostGradPass(settings, before)
        changes[PASSES_ON], changes[PASSES] = bool(theirs), theirs
        return settings, changes
    if known["deterministic"]:
        notes.append(NOTE)
        warn(f"overlap_sched cannot run: {NOT_RUN}")
    settings = replace(settings, notes=tuple(notes))
    changes[PASSES_ON], changes[PASSES] = True, [*theirs, SchedulerPass(settings)]
    if rewrites_wanted(settings.options):
        before = RewritePass(settings, planned, before)
    changes[POST_GRAD] = DeterministicWatch(settings, before, competing)
    return settings, changes


def _partitioner(settings: Settings, known: dict[str, Any]) -> dict[str, Any]:
    if PARTITIONER not in known:
        why = (
            f"torch {torch.__version__} takes no partitioner (torch._inductor.config.{PARTITIONER}). Use 2.13 or newer."
        )
        if settings.options.strict:
            raise UnsupportedError(why)
        warn(f"overlap_sched leaves what is saved for backward to torch: {why}")
        return {}
    before = known[PARTITIONER]
    while isinstance(before, FitPartitioner):  # ours, of an outer block
        before = before.before
    return {PARTITIONER: FitPartitioner(settings, before)}


def _switch_on(settings: Settings) -> None:
    while _following:
        _following.pop().close()
    if not settings.follows:
        note_earlier_code()
    settings, changes = _changes(settings)
    with ExitStack() as undo:  # all of it, or nothing
        if dist.is_available():
            undo.enter_context(safe_gathers())
        for name, value in changes.items():
            _set_in_every_thread(name, value, undo)
        if changes:
            undo.callback(observe(partial(look, settings=settings)))
            undo.callback(watch_optimizers())
        if settings.follows:
            _following.append(undo.pop_all())
        else:
            _on.append((settings, undo.pop_all()))


def _set_in_every_thread(name: str, value: Any, undo: ExitStack) -> None:
    """Change one of torch's settings; from 2.13 on each thread and context has its own, in a context variable."""
    undo.callback(setattr, config, name, getattr(config, name))
    entry = vars(config).get("_config", {}).get(name)
    before = getattr(entry, "user_override", None)
    if isinstance(before, ContextVar):
        undo.callback(_set_variable, entry, before)
        _set_variable(entry, ContextVar(name, default=value))
    setattr(config, name, value)


def _set_variable(entry: Any, variable: ContextVar[Any]) -> None:
    entry.user_override = variable
    for name, dirty in (("_hash_dirty_var", True), ("_get_dict_dirty_keys_var", None)):
        if hasattr(config, name):  # what contexts remember of their settings, for cache keys, is out of date
            setattr(config, name, ContextVar(name, default=dirty))


def _switch_off() -> None:
    settings, undo = _on.pop()
    try:
        undo.close()
        if not _on and some_graph_moves():  # what is compiled again must launch as other ranks do
            options = replace(settings.options, preserve_collective_order="waits", rewrites=())
            _switch_on(replace(settings, options=options, memory_limit=None, max_slowdown=None, follows=True))
    finally:
        tally.say()


def _end() -> None:
    """The process ends while it is on, and not by an error."""
    if _on and not hasattr(sys, "last_type"):
        uncompiled.tell()


atexit.register(_end)
