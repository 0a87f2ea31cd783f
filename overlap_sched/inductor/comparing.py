"""Before and after, in one's own training loop: a step with the plug-in and one without it, timed in turns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from overlap_sched.errors import OptionsError
from overlap_sched.inductor.switch import inductor_options
from overlap_sched.options import Options
from overlap_sched.report.units import change, count, duration, size


@dataclass(frozen=True)
class Timed:
    """A step that was timed on this rank.

    Attributes:
        first_us: The first step: compiling, loading from caches, and one step.
        steps_us: The steps behind the warm-up, in order, each until the device had finished.
        peak_bytes: The most that torch's allocator had given out during these; ``None``: not on a GPU.
    """

    first_us: float
    steps_us: tuple[float, ...]
    peak_bytes: int | None = None

    def __str__(self) -> str:
        """One line."""
        low, high = min(self.steps_us), max(self.steps_us)
        memory = "" if self.peak_bytes is None else f", peak {size(self.peak_bytes)}"
        steps = count(len(self.steps_us), "step")
        return (
            f"{duration(median(self.steps_us))} (median of {steps}; {duration(low)} to {duration(high)}){memory}; "
            f"first step, with compiling, {duration(self.first_us)}"
        )


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` has measured on this rank.

    Attributes:
        before: Without overlap_sched.
        after: With it.
    """

    before: Timed
    after: Timed

    @property
    def wins(self) -> int:
        """In how many turns the step with overlap_sched was the shorter one."""
        return sum(b < a for a, b in zip(self.before.steps_us, self.after.steps_us, strict=True))

    def __str__(self) -> str:
        """Three lines for people."""
        turns = len(self.before.steps_us)
        changed = change(median(self.before.steps_us), median(self.after.steps_us))
        return (
            f"without overlap_sched  {self.before}\n"
            f"with overlap_sched     {self.after}\n"
            f"median step {changed}, shorter in {self.wins} of {count(turns, 'turn')}"
        )


def compare(
    step: Callable[[Callable[..., Any]], object],
    model: Callable[..., Any],
    options: Options | None = None,
    *,
    steps: int = 20,
    warmup: int = 3,
    inductor: Mapping[str, Any] | None = None,
    compile_arguments: Mapping[str, Any] | None = None,
    **how: Any,
) -> Comparison:
    """Time a training step without and with overlap_sched, in turns, in this process.

    ::

        def step(compiled):
            compiled(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        print(overlap_sched.compare(step, model))

    The model is compiled twice, and both are kept: what is compiled is never timed with the steps. All steps really
    train: ``2 * (warmup + steps)`` of them. Call it on all ranks alike, with the plug-in off, before anything else has
    compiled the model. Turns alternate in which of the two goes first, so that what drifts meets both.

    Args:
        step: One step, with the compiled model as its argument.
        model: A module or function, not compiled.
        options: How to schedule; ``None``: the defaults.
        steps: Steps of each that are timed.
        warmup: Steps of each before that. The first of them compiles.
        inductor: Settings of ``torch._inductor.config`` for both, as ``torch.compile(options=...)`` takes them.
        compile_arguments: What else ``torch.compile`` takes, for both: ``fullgraph``, ``dynamic``.
        **how: As :func:`overlap_sched.inductor_options` takes them.

    Raises:
        OptionsError: Too few steps, or no such option.
    """
    if steps < 1 or warmup < 1:
        raise OptionsError(f"steps is {steps} and warmup is {warmup}; both are 1 at least: the first step compiles.")
    rest = dict(compile_arguments or {})
    theirs = dict(inductor or {})
    plain = torch.compile(model, options=theirs or None, **rest)
    ours = torch.compile(model, options={**theirs, **inductor_options(options, **how)}, **rest)
    return in_turns(lambda: step(plain), lambda: step(ours), steps, warmup)


def in_turns(before: Callable[[], object], after: Callable[[], object], steps: int, warmup: int) -> Comparison:
    """Time two steps in turns: warmed up first, one behind the other; then this one first, then that one."""
    both = before, after
    warmed = [[_timed(run)[0] for _ in range(warmup)] for run in both]
    times: tuple[list[float], list[float]] = [], []
    peaks: list[int | None] = [None, None]
    for turn in range(steps):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            took_us, peak = _timed(both[which])
            times[which].append(took_us)
            if peak is not None:
                peaks[which] = max(peak, peaks[which] or 0)
    first, second = (Timed(warmed[i][0], tuple(times[i]), peaks[i]) for i in (0, 1))
    return Comparison(first, second)


def _timed(run: Callable[[], object]) -> tuple[float, int | None]:
    """Microseconds until the device has finished, and the peak on a GPU in bytes."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    run()
    if gpu:
        torch.cuda.synchronize()
    took_us = (time.perf_counter() - began) * 1e6
    return took_us, torch.cuda.max_memory_allocated() if gpu else None
