"""Run every scheduler on one graph and measure its order with the same judges."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llama_repro import INSTANCES
from llama_repro.capture.cache import Stored, stored_problems
from llama_repro.capture.configs import CONFIGS
from llama_repro.harness.heap import heap_order
from llama_repro.harness.judge import ORIGINAL, Judge, Row
from llama_repro.harness.torch_pass import torch_orders
from overlap_sched.options import Options
from overlap_sched.problem import MemoryModel, Order, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.scheduler.driver import Schedule, schedule

FILES = {"llama2d": "llama3_8b_bw_64_2d"}
"""Graphs that come as problem files, in one memory model; all others are captured, in both."""
GRAPHS = (*CONFIGS, *FILES)

HEAPS = {
    "heap": {"prefetch": True, "fallback": False},
    "heap, no prefetch": {"prefetch": False, "fallback": False},
    "heap, fallback": {"prefetch": True, "fallback": True},
}
OURS = {"ours, headroom 0": 0, "ours, headroom 1 GiB": 2**30}

Progress = Callable[[str], None]
"""Hears what is being done."""


@dataclass(frozen=True)
class Entry:
    """One order of a graph.

    Attributes:
        name: Who made it.
        model: The memory model that it was made in. ``None``: it knows nothing of memory.
        rows: Its figures, by memory model.
    """

    name: str
    model: MemoryModel | None
    order: Order
    rows: Mapping[MemoryModel, Row]

    @property
    def key(self) -> str:
        """Its name among committed figures."""
        return self.name if self.model is None else f"{self.name}, {self.model}"

    @property
    def row(self) -> Row:
        """Its figures in the model that it was made in."""
        return next(iter(self.rows.values())) if self.model is None else self.rows[self.model]

    @property
    def broken(self) -> str | None:
        """What is wrong with it, if anything is."""
        return next((row.broken for row in self.rows.values() if row.broken), None)


@dataclass(frozen=True)
class Measured:
    """All orders of one graph, the original first; remarks on torch's pass; ours at headroom 0, to be drawn."""

    graph: str
    stored: Stored
    entries: tuple[Entry, ...]
    remarks: tuple[str, ...]
    ours: Schedule

    @property
    def problem(self) -> Problem:
        """The graph, in the memory model that pictures show."""
        return self.ours.problem


def load_graph(name: str, *, refresh: bool = False, progress: Progress = lambda text: None) -> Stored:
    """One of :data:`GRAPHS`; a captured one from the cache, unless ``refresh``."""
    if name in FILES:
        problem = read_problem(INSTANCES / f"{FILES[name]}.json.gz")
        return Stored({problem.memory_model: problem})
    return stored_problems(CONFIGS[name], refresh=refresh, progress=progress)


def measure(graph: str, stored: Stored, *, with_torch: bool = True, progress: Progress = lambda text: None) -> Measured:
    """Run the heap, torch's pass (if asked and able to), and ours in each memory model of the graph."""
    judges = {model: Judge(problem, "x1") for model, problem in stored.problems.items()}
    first, problem = next(iter(stored.problems.items()))
    entries: list[Entry] = []
    remarks: list[str] = []

    def add(name: str, model: MemoryModel | None, order: Order, pass_s: float, result: Schedule | None = None) -> None:
        rows = {at: judge.row(name, order, pass_s) for at, judge in judges.items()}
        if model is not None and result is not None:
            rows[model] = judges[model].ours(name, result, pass_s)
        entries.append(Entry(name, model, order, rows))

    add(ORIGINAL, None, problem.original_order, 0.0)
    for name, how in HEAPS.items():
        progress(f"{graph}: {name}")
        started = time.perf_counter()
        order = heap_order(problem, **how)
        add(name, first if how["fallback"] else None, order, time.perf_counter() - started)
    if with_torch:
        progress(f"{graph}: torch's own pass")
        for name, made in torch_orders(problem).items():
            if isinstance(made, str):
                remarks.append(f"{name}: {made}")
                continue
            add(name, first, made.order, made.pass_s)
            remarks += [f"{name}: {made.remark}"] if made.remark else []
    for model, same in stored.problems.items():
        results = {}
        for name, headroom in OURS.items():
            progress(f"{graph}: {name}, {model} memory model")
            results[name] = result = schedule(same, Options(headroom=headroom, memory_model=model))
            add(name, model, result.order, result.schedule_s + stored.lift_s, result)
    return Measured(graph, stored, tuple(entries), tuple(remarks), next(iter(results.values())))
