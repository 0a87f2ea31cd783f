"""Each stage of the scheduler left out in turn: what the step is without it, and what it takes of the pass."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from llama_repro.harness.console import markdown_table
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.scheduler.driver import ALL, schedule
from overlap_sched.scheduler.task import Candidate, Reference, Stage, Task

SAME = 1e-5
"""Relative: steps closer than this are the same."""
HEADINGS = ("without", "rows", "longer", "shorter", "mean", "most longer", "most shorter", "of the pass")


@dataclass(frozen=True)
class Run:
    """One pass over one graph.

    Attributes:
        row: Graph and network. without: stages left out, joined by ``+``; ``""``: none.
        step_us: Of the order. cpu_s: processor time of the pass, and by stage.
    """

    row: str
    without: str
    step_us: float
    cpu_s: float
    by_stage_s: dict[str, float]


def run(row: str, problem: Problem, without: str = "") -> Run:
    """Schedule a graph without some stages."""
    seconds = dict[str, float]()

    def timed(stage: Stage) -> Stage:
        def step(task: Task, reference: Reference, found: Candidate) -> Candidate:
            began = time.process_time()
            after = stage.run(task, reference, found)
            seconds[stage.name] = seconds.get(stage.name, 0.0) + time.process_time() - began
            return after

        return replace(stage, run=step)

    stages = (ALL.without(*without.split("+")) if without else ALL).each(timed)
    began = time.process_time()
    made = schedule(problem, Options(memory_model=problem.memory_model), stages=stages)
    return Run(row, without, made.scheduled.step_us, time.process_time() - began, seconds)


def ablated(row: str, problem: Problem, without: Sequence[str]) -> Iterator[Run]:
    """All stages first, then without some of them."""
    return (run(row, problem, name) for name in ("", *without))


def table(runs: Sequence[Run]) -> str:
    """A line per stage, over the rows that were run."""
    whole = {one.row: one for one in runs if not one.without}
    names = dict.fromkeys(one.without for one in runs if one.without)
    lines = [_line(name, [(whole[one.row], one) for one in runs if one.without == name]) for name in names]
    return markdown_table(HEADINGS, lines)


def _line(name: str, pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    earned = [part.step_us / all_.step_us - 1 for all_, part in pairs]
    shares = [
        sum(all_.by_stage_s.get(one, 0.0) for one in name.split("+")) / max(all_.cpu_s, 1e-9) for all_, _ in pairs
    ]
    counts = (len(pairs), sum(one > SAME for one in earned), sum(one < -SAME for one in earned))
    return [
        *(name, *map(str, counts)),
        *(f"{100 * one:+.2f} %" for one in (mean(earned), max(earned), min(earned))),
        f"{100 * mean(shares):.0f} %",
    ]
