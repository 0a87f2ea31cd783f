"""Switch it on and off: one line, and off again restores every setting.

    with overlap_sched.enabled(options):      # around the first forward and backward: that is when torch compiles
        train_step(model, batch)

    overlap_sched.enable(options)             # until overlap_sched.disable()

    torch.compile(model, options=overlap_sched.inductor_options(options))

Settings of ``torch._inductor.config`` are anybody's: code that runs after ``enable()`` may set them anew, as
torchtitan's compile backend does, and a ``torch.compile(options=...)`` of its own wins over them. So may
``torch.use_deterministic_algorithms(True)``, in which torch calls no custom pass after fusion. So all that is looked at
when a graph is compiled, by passes on the FX graph that Inductor is about to lower and by Dynamo's callbacks.

Inductor reorders what it lowers, so an order that is set on the FX graph survives only in part: the default is
:class:`SchedulerPass`, after fusion. torch has passes behind the place where it calls ours (``simple_overlap``, the one
that joins partitions for CUDA graphs). They would undo our order. So ours is deferred until they have run: what it
starts from, what memory is counted from and what no step is longer than is what torch alone makes. Nothing of torch has
to be switched off for it. What is reported is the order that the generated code has, compared when that is written.

While it is on, gathers over gloo go around a fault of torch (:mod:`~overlap_sched.inductor.gloo`); with
``inductor_options`` for as long as anything holds these options, as the compiled function does.
"""

import atexit
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import fx
from torch._dynamo import convert_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlap_sched.cost import CostModel
from overlap_sched.cost.cluster import Cluster
from overlap_sched.errors import OptionsError, UnsupportedError
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor import reporting
from overlap_sched.inductor.agree import asks, note_earlier_code, some_graph_moves
from overlap_sched.inductor.caches import key_after, settings_key, watch_caches
from overlap_sched.inductor.fx_stage import Choose, choose_rewrites, rewrite_and_schedule, rewrite_fx
from overlap_sched.inductor.gloo import safe_gathers, safe_gathers_with
from overlap_sched.inductor.partitioning import FitPartitioner
from overlap_sched.inductor.reporting import guard, rank, tally, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options, check_names, options_given, rewrites_wanted

PASSES = "reorder_for_compute_comm_overlap_passes"
PASSES_ON = "reorder_for_compute_comm_overlap"
POST_GRAD = "post_grad_custom_post_pass"
PARTITIONER = "custom_partitioner_fn"
COMPETING = "aten_distributed_optimizations.enable_overlap_scheduling"
"""A reorderer of torch that runs before us, off while we run: it makes fusion worse by dependencies that it inserts."""
NOTHING_COMPILED = (
    "overlap_sched: nothing has been compiled, so nothing can be reordered. Give the model to torch.compile, after "
    "overlap_sched.enable() and after shard(). torch compiles when a function is called first, and its backward when "
    "that is called: a block of overlap_sched.enabled() must hold both."
)
EAGER_STEPS = 2


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
        UnsupportedError: With ``strict``: this version of torch is not known. Else torch stays as it is, with a
            warning.
    """
    _, changes = _plan_changes(_settings_given("inductor_options", options, how))
    if changes:
        safe_gathers_with(changes[PASSES][-1] if isinstance(changes[POST_GRAD], WatchPass) else changes[POST_GRAD])
    return changes


@contextmanager
def enabled(options: Options | None = None, **how: Unpack[How]) -> Iterator[None]:
    """Schedule what is compiled inside the block; see :func:`inductor_options` for the arguments.

    torch compiles when a function is called first, its backward when that is called: put both into the block. What has
    been compiled before stays as it is.
    """
    _switch_on(_settings_given("enabled", options, how))
    depth, before = len(_on), _count_compiled()
    try:
        yield
        if _count_compiled() == before and not tally.seen and rank() == 0:
            reporting.say(NOTHING_COMPILED, logging.WARNING)
    finally:
        while len(_on) >= depth:
            _switch_off()


def enable(options: Options | None = None, **how: Unpack[How]) -> None:
    """Schedule all that is compiled until :func:`disable`, in every thread; again: with the new options."""
    settings, earlier = _settings_given("enable", options, how), current_settings()
    disable()
    _switch_on(settings)
    changed = earlier is None or replace(earlier, notes=()) != settings
    if changed and rank() == 0 and convert_frame.output_codes.seen_ids:
        reporting.say(
            "overlap_sched: enable() was called when torch had compiled graphs already. They keep their order. Call "
            "enable() before the first step, or torch.compiler.reset() after it to have all compiled again.",
            logging.WARNING,
        )


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


SUPPORTED = ((2, 11), (2, 15))
"""First and last minor version of torch whose scheduler we have read and run."""


UNKNOWN_TORCH = (
    "this is torch {}, and overlap_sched supports the Inductor scheduler of torch {}.{} to {}.{}. Use one of these, or "
    "schedule FX graphs (backend='overlap_sched' or schedule_graph), which works with any version."
).format(torch.__version__, *SUPPORTED[0], *SUPPORTED[1])


def knows_torch(version: str = torch.__version__) -> bool:
    """Tell whether the private names of a version of torch mean what we think."""
    return SUPPORTED[0] <= tuple(int(part) for part in version.split(".")[:2]) <= SUPPORTED[1]


@dataclass(frozen=True)
class SchedulerPass:
    """A callable for ``torch._inductor.config.reorder_for_compute_comm_overlap_passes``; of a version that is known.

    Attributes:
        settings: How to schedule.
    """

    settings: Settings

    def __call__(self, snodes: list[Any]) -> list[Any]:
        """Return the nodes as they are: torch's own passes run first, then ours; where that cannot be, in our order.

        Raises:
            VerificationError, AgreementError: With ``strict``, instead of a fallback.
        """
        from overlap_sched.inductor import kernel_graph  # torch's scheduler: only where a pass of it runs

        try:
            if kernel_graph.at_the_end(snodes, partial(kernel_graph.order_kernels, self.settings, True)):
                return snodes
        except Exception as error:
            warn("overlap_sched runs in front of torch's last passes", error)
        return kernel_graph.order_kernels(self.settings, False, list(snodes))

    def __reduce__(self) -> tuple[Any, ...]:
        """How torch's caches see this pass: by its name, see :func:`overlap_sched.inductor.caches.settings_key`.

        Raises:
            TypeError: It has none; torch then compiles without its caches.
        """
        name = None
        with suppress(Exception):  # torch goes on without its caches on a TypeError alone
            name = settings_key(self.settings) if watch_caches(self.settings) else None
        if name is None:
            raise TypeError("this overlap_sched pass has no stable cache key: compile without caches")
        return (SchedulerPass, (self.settings,), {"name": name})  # which is there for the hash only

    def __deepcopy__(self, memo: dict[int, Any]) -> "SchedulerPass":
        """Return itself: it never changes, and torch copies its settings often."""
        return self


@dataclass(frozen=True)
class PostGradPass(CustomGraphPass):
    """For ``torch._inductor.config.post_grad_custom_post_pass``: rewrites and reorders, in place or not at all.

    Where torch runs no passes after fusion, and for compilers that lower by themselves.

    Attributes:
        settings: How to schedule.
        before: The pass that was set before; it runs first.
    """

    settings: Settings
    before: CustomGraphPass | None = None

    def __call__(self, graph: fx.Graph) -> None:
        """Work on the graph in place, or leave it as it was."""
        if self.before is not None:
            self.before(graph)
        self.run(graph)

    def run(self, graph: fx.Graph) -> None:
        """Work on the graph when the other pass has run."""
        rewrite_and_schedule(graph, self.settings)

    def uuid(self) -> str | None:
        """Name this package's version and all settings, for torch's caches; ``None``: compile without them.

        ``None`` also where ranks must agree: code in a cache does not tell in which order this pass left its graph.
        """
        return None if asks(self.settings) else key_after(self.before, settings_key(self.settings))


@dataclass(frozen=True)
class WatchPass(PostGradPass):
    """Rewrites before Inductor lowers, and warns where a graph will not be scheduled: then nothing is rewritten.

    Attributes:
        competing: A reorderer of torch's own is off for us. It is on again for graphs that we do not get.
        choose: What to rewrite.
    """

    competing: bool = False
    choose: Choose = choose_rewrites

    def run(self, graph: fx.Graph) -> None:
        """Rewrite the graph in place, or leave it as it was; warn where it will not be scheduled."""
        obstacle: str | None = "it is not known"
        with guard("could not inspect a graph"):  # what only looks must not stop a compilation
            _watch.listen()
            obstacle = find_obstacle(self.settings)
            if self.competing:
                setattr(config, COMPETING, obstacle is not None)
            warn_of_obstacle(obstacle)
        if obstacle is None and rewrites_wanted(self.settings.options):
            rewrite_fx(graph, self.settings, self.choose)

    def uuid(self) -> str | None:
        """Name what it does; ``None`` where it rewrites, and torch does not ask us before it uses code from a cache."""
        own: str | None = "overlap_sched watches"
        if rewrites_wanted(self.settings.options):
            own = settings_key(self.settings) if watch_caches(self.settings) else None
        return key_after(self.before, own)


def find_obstacle(settings: Settings) -> str | None:
    """Name the setting that keeps Inductor from calling us, as they are now; ``None``: none does."""
    if settings.stage == "post_grad":
        now = getattr(config, POST_GRAD)
        return None if isinstance(now, PostGradPass) else f"torch._inductor.config.{POST_GRAD} is {_name_of(now)}"
    if config.deterministic:
        return (
            "torch._inductor.config.deterministic is on (turn it off, or schedule before lowering: stage='post_grad')"
        )
    if not getattr(config, PASSES_ON):
        return f"torch._inductor.config.{PASSES_ON} is False"
    passes = getattr(config, PASSES)
    if not any(isinstance(p, SchedulerPass) for p in passes):
        return f"torch._inductor.config.{PASSES} is [{', '.join(map(_name_of, passes))}]"
    return None


def warn_of_obstacle(obstacle: str | None) -> None:
    """Warn on rank 0 of what :func:`find_obstacle` has found; nothing where that is ``None``."""
    if obstacle is not None and rank() == 0:
        warn(
            f"overlap_sched is switched on, but Inductor does not call it: {obstacle}. Graphs are in the order that "
            "torch alone gives them. Other code may have set that, or torch.compile's own options. Call "
            "overlap_sched.enable() after that code, or give the settings to torch.compile: "
            "options=overlap_sched.inductor_options()."
        )


def _name_of(thing: Any) -> str:
    """A pass or function by its name and where it is from."""
    if thing is None or isinstance(thing, str):
        return repr(thing)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__qualname__.rpartition('<locals>.')[2]} of {named.__module__}"


def _count_compiled() -> tuple[int, int, int]:
    """Count the graphs that Dynamo has made, those of which we know, and those that torch found in its caches."""
    cached = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return counters["stats"]["unique_graphs"], tally.seen, cached


class _Watch:
    """Looks at what torch compiles while we are on; ``torch._dynamo.reset`` forgets it until the next graph comes."""

    _before = (0, 0, 0)

    def listen(self) -> None:
        """Register the callbacks (idempotent)."""
        if self.end not in callback_handler.end_callbacks:
            callback_handler.register_start_callback(self.start)
            callback_handler.register_end_callback(self.end)

    def start(self, _: Any) -> None:
        """For ``register_start_callback``."""
        _stop_counting()
        self._before = _count_compiled()

    def end(self, _: Any) -> None:
        """For ``register_end_callback``: torch is done with a frame, or with the graph of a backward."""
        with guard("could not watch a compilation"):
            graphs, seen, cached = (now - then for now, then in zip(_count_compiled(), self._before, strict=True))
            settings = current_settings()
            if settings is None or seen or not (graphs or cached):
                return
            obstacle = find_obstacle(settings)
            warn_of_obstacle(obstacle)
            if obstacle is None and cached:
                name = reporting.name_graph("graph" if graphs else "backward")
                reporting.record_cached(name, settings.stage, communicates=not asks(settings))  # else it has come to us
            else:
                tally.miss(graphs)


_watch = _Watch()
_step_hooks: list[Any] = []


def _count_eager_steps() -> None:
    """Warn after two steps of any optimizer without anything compiled; then, or when torch compiles, count no more."""
    steps = count(1)

    def count_step(*_: Any) -> None:
        if not torch.compiler.is_compiling() and next(steps) >= EAGER_STEPS:
            _stop_counting()
            _warn_if_only_eager()

    if not _step_hooks:
        _step_hooks.append(register_optimizer_step_post_hook(count_step))


def _stop_counting() -> None:
    """Torch is about to compile, and must not find a hook of ours in an optimizer."""
    while _step_hooks:
        _step_hooks.pop().remove()


def _warn_if_only_eager() -> None:
    if not counters["stats"]["unique_graphs"] and rank() == 0:
        warn(NOTHING_COMPILED)


def _settings_given(call: str, options: Options | None, how: How) -> Settings:
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


def _plan_changes(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with notes on what is switched off, and the changes of ``torch._inductor.config``."""
    known = config.get_config_copy()
    if settings.stage == "inductor" and not knows_torch():
        _cannot(settings, "torch as it is", UNKNOWN_TORCH)
        return settings, {}
    changes: dict[str, Any] = {COMPETING: False} if COMPETING in known else {}
    competing = bool(known.get(COMPETING))
    notes = [f"torch's {COMPETING} is turned off"] if competing else []
    if settings.fits and PARTITIONER in known:
        changes[PARTITIONER] = FitPartitioner(settings, _not_ours(known[PARTITIONER], FitPartitioner))
    elif settings.fits:
        why = f"torch {torch.__version__} takes no partitioner (torch._inductor.config.{PARTITIONER})"
        _cannot(settings, "what is saved for backward to torch", f"{why}. Use 2.13 or newer.")
    earlier = list(known[PASSES]) if known[PASSES_ON] else []
    theirs = [p for p in earlier if callable(p) and not isinstance(p, SchedulerPass)]
    notes += [f"torch's pass {p!r} is turned off" for p in earlier if isinstance(p, str)]
    notes += [f"{getattr(p, '__name__', type(p).__name__)} runs before this pass" for p in theirs]
    competing = competing or getattr(known[POST_GRAD], "competing", False)
    before = _not_ours(known[POST_GRAD], PostGradPass)
    early = settings.stage == "post_grad"
    notes += ["Inductor reorders the graph as it lowers it: only part of the order survives"] if early else []
    settings = replace(settings, notes=tuple(notes))
    passes = theirs if early else [*theirs, SchedulerPass(settings)]
    after = PostGradPass(settings, before) if early else WatchPass(settings, before, competing)
    return settings, changes | {PASSES_ON: bool(passes), PASSES: passes, POST_GRAD: after}


def _cannot(settings: Settings, left: str, why: str) -> None:
    if settings.options.strict:
        raise UnsupportedError(why)
    warn(f"overlap_sched leaves {left}: {why}")


def _not_ours(before: Any, ours: type) -> Any:
    """Return what was set before us, an outer block of ours apart."""
    while isinstance(before, ours):
        before = before.before  # type: ignore[attr-defined]
    return before


def _switch_on(settings: Settings) -> None:
    while _following:
        _following.pop().close()
    if not settings.follows:
        note_earlier_code()
    settings, changes = _plan_changes(settings)
    with ExitStack() as undo:  # all of it, or nothing
        undo.enter_context(safe_gathers())
        for name, value in changes.items():
            _set_in_every_thread(name, value, undo)
        if changes:
            _watch.listen()
            _count_eager_steps()
            undo.callback(_stop_counting)
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
            settings = settings.preserving("waits")
            _switch_on(replace(settings, memory_limit=None, max_slowdown=None, follows=True))
    finally:
        tally.say()


def _end() -> None:
    """The process ends while it is on, and not by an error."""
    if _on and not hasattr(sys, "last_type"):
        _warn_if_only_eager()


atexit.register(_end)
