"""Run every scheduler on one captured graph and measure them with the same judges."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llama_repro.capture.cache import Stored
from llama_repro.errors import TorchPassError
from llama_repro.harness.heap import heap_order
from llama_repro.harness.torch_pass import TorchHeadroom, torch_order
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.options import Options
from overlap_sched.problem import MemoryModel, Order, Problem
from overlap_sched.report.text import gap_percent
from overlap_sched.scheduler.pipeline import schedule
from overlap_sched.scheduler.result import Figures, Schedule

PUBLISHED_GB = {"original": 65.73, "heap": 105.75, "heap, no prefetch": 173.54, "heap, fallback": 72.15}
"""Peaks published for torch's ``llama1d_bwd``, in the tracker model; torch's pass counts a GB as 2**30 bytes."""
OURS = ((0, "0"), (2**30, "1 GiB"))
"""Headrooms that ours runs with."""

HEAPS = (("heap", True, False), ("heap, no prefetch", False, False), ("heap, fallback", True, True))
"""Baselines: name, whether it prefetches, whether it falls back to original indices."""
TORCH: tuple[tuple[TorchHeadroom, str], ...] = (("default", "torch, default caps"), ("zero", "torch, caps 0"))
"""Settings that torch's own pass runs with."""
DRAWN = ("heap", "torch, default caps")
"""Orders of others that are worth a picture."""


@dataclass(frozen=True)
class Row:
    """One order of the graph, measured.

    Attributes:
        name: Who made it.
        model: The memory model that it was made in. ``None``: it knows nothing of memory.
        headroom_bytes: What it was told to keep to, above the original peak in that model; ``None``: nothing.
        peak_bytes: Its peak, by memory model.
        step_us, exposed_us, gap_percent: Step time, exposed part of it, and how far it is above the lower bound.
        pass_s: Seconds that making it took; ours with lifting the graph.
        problem: What is wrong with it, if anything is.
    """

    name: str
    model: MemoryModel | None
    headroom_bytes: int | None
    peak_bytes: Mapping[MemoryModel, int]
    step_us: float
    exposed_us: float
    gap_percent: float
    pass_s: float
    problem: str | None = None


@dataclass(frozen=True)
class Measured:
    """All rows of one configuration, the bound, what is to be said of torch's pass, and the schedules to draw."""

    rows: tuple[Row, ...]
    bound_us: float
    remarks: tuple[str, ...]
    schedules: Mapping[str, Schedule]

    @property
    def original(self) -> Row:
        """The row of the order that the graph came in."""
        return self.rows[0]


def measure(
    stored: Stored, *, with_torch: bool = True, progress: Callable[[str], None] = lambda text: None
) -> Measured:
    """Run the baselines, torch's pass (if asked and able to) and ours in both memory models."""
    tracker = stored.problems["tracker"]
    judge = _Judge(stored)
    remarks: list[str] = []
    judge.add("original", tracker.original_order, 0.0)
    for name, prefetch, fallback in HEAPS:
        progress(f"{tracker.name}: {name}")
        started = time.perf_counter()
        order = heap_order(tracker, prefetch=prefetch, fallback=fallback)
        judge.add(name, order, time.perf_counter() - started, "tracker" if fallback else None)
    for headroom, name in TORCH if with_torch else ():
        progress(f"{tracker.name}: torch's own pass ({headroom} caps)")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", RuntimeWarning)
                order, seconds = torch_order(tracker, headroom)
            judge.add(name, order, seconds, "tracker")
            remarks += [f"{name}: {warning.message}" for warning in caught]
        except TorchPassError as error:
            remarks.append(f"{name}: {error}")
    for model, problem in stored.problems.items():
        for headroom_bytes, shown in OURS:
            progress(f"{tracker.name}: ours, {shown} headroom, {model} memory model")
            result = schedule(problem, Options(headroom=headroom_bytes, memory_model=model))
            judge.add_ours(f"ours, headroom {shown}", result, stored.lift_s)
    return Measured(tuple(judge.rows), judge.bound_us, tuple(remarks), judge.schedules)


class _Judge:
    def __init__(self, stored: Stored) -> None:
        self.problems = stored.problems
        self.bound_us = lower_bound_us(stored.problems["tracker"])
        self.rows: list[Row] = []
        self.schedules: dict[str, Schedule] = {}

    def add(self, name: str, order: Order, seconds: float, model: MemoryModel | None = None) -> None:
        """Measure an order that promises nothing."""
        row = self.row(name, order, seconds, model, None, None)
        self.rows.append(row)
        if name in DRAWN:
            self.schedules[name] = _as_schedule(self.problems["tracker"], order, seconds)

    def add_ours(self, name: str, result: Schedule, lift_s: float) -> None:
        """Measure a schedule that promises to stay within its headroom."""
        model = result.problem.memory_model
        seconds = result.schedule_s + lift_s
        broken = None if result.fell_back is None else f"fell back to the original order: {result.fell_back}"
        row = self.row(name, result.order, seconds, model, result.headroom_bytes, broken)
        self.rows.append(row)
        self.schedules[f"{name}, {model}"] = result

    def row(
        self,
        name: str,
        order: Order,
        seconds: float,
        model: MemoryModel | None,
        headroom: int | None,
        broken: str | None,
    ) -> Row:
        peaks = {m: peak_memory(problem, order)[0] for m, problem in self.problems.items()}
        for problem in self.problems.values():
            broken = broken or violation(problem, order)
        if model is not None and headroom is not None:
            allowed = self.rows[0].peak_bytes[model] + headroom
            if peaks[model] > allowed:
                broken = f"peak {peaks[model]} is {peaks[model] - allowed} bytes above the original peak + headroom"
        run = replay(self.problems["tracker"], order)
        gap = gap_percent(run.step_us, self.bound_us)
        return Row(name, model, headroom, peaks, run.step_us, run.exposed_us, gap, seconds, broken)


def _as_schedule(problem: Problem, order: Order, seconds: float) -> Schedule:
    """Another scheduler's order in the clothes of ours, to be drawn like it."""

    def figures(of: Order) -> Figures:
        run, (peak, at) = replay(problem, of), peak_memory(problem, of)
        return Figures(run.step_us, run.exposed_us, peak, at)

    options = Options(memory_model=problem.memory_model)
    return Schedule(problem, options, order, figures(problem.original_order), figures(order), 0, (), None, seconds)
