"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order under each other.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each a row per
stream, arrows from launches to waits (:mod:`overlap_sched.report.trace.rows`), and memory as counters
(:mod:`overlap_sched.report.trace.file`). Measured steps may follow as further processes
(:mod:`overlap_sched.report.trace.measured`). Each process says in its name whether it is simulated or measured.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Problem
from overlap_sched.report.files import write_file
from overlap_sched.report.memory_kinds import memory_by_kind
from overlap_sched.report.trace.events import Event, counter, mark, rounded_us
from overlap_sched.report.trace.measured import MeasuredStep, measured_events
from overlap_sched.report.trace.rows import ROWS, original_decisions, row_events
from overlap_sched.report.units import size
from overlap_sched.report.words.contention import contention_figures
from overlap_sched.report.words.reserved import settings_for
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges

ORIGINAL, SCHEDULED, MEASURED = 1, 2, 3
"""Ids of processes; of those measured, the first one's."""


def write_trace(
    schedule: Schedule,
    path: str | Path,
    *,
    original: Problem | None = None,
    measured: Sequence[MeasuredStep] = (),
) -> None:
    """Write the trace of a schedule as JSON.

    Args:
        schedule: Whose order is the scheduled one.
        path: Of the file.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).
        measured: Real steps, to stand under the simulated ones.

    Raises:
        OutputError: The file cannot be written.
    """
    trace = trace_document(schedule, original or schedule.problem, measured)
    write_file(path, json.dumps(trace, allow_nan=False, separators=(",", ":")).encode())


def trace_document(schedule: Schedule, original: Problem, measured: Sequence[MeasuredStep] = ()) -> dict[str, Any]:
    """The trace; arguments as of :func:`write_trace`."""
    problem = schedule.problem
    return {
        "traceEvents": [
            *row_events(
                original, ORIGINAL, "original (simulated)", original.original_order, original_decisions(original)
            ),
            *_memory(original, ORIGINAL, original.original_order),
            *row_events(problem, SCHEDULED, "scheduled (simulated)", schedule.order, schedule.decisions),
            *_memory(problem, SCHEDULED, schedule.order),
            *measured_events(measured, MEASURED),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": problem.name,
            "memory_model": problem.memory_model,
            "contention": contention_figures(problem.contention),
            "note": "original and scheduled: simulated, replay of one compute stream and one stream per process group"
            + ("; the others: measured" if measured else ""),
            "measured": [step.about() for step in measured],
        },
    }


def _memory(problem: Problem, pid: int, order: Sequence[int]) -> list[Event]:
    return list(memory_events(problem, pid, pid * ROWS, order, replay(problem, order)))


LIVE, BY_KIND, RESERVED = "memory: live", "memory: live, by kind", "memory: reserved"


def memory_events(problem: Problem, pid: int, tid: int, order: Sequence[int], run: Replay) -> Iterator[Event]:
    """All counters of an order, and a mark at its peak (``tid``: the row that the mark names)."""
    kinds = memory_by_kind(problem, order)
    live = [sum(steps) for steps in zip(*kinds.values(), strict=True)]
    shown: dict[str, dict[str, list[int]]] = {
        LIVE: {"bytes": live},
        BY_KIND: {kind: steps for kind, steps in kinds.items() if any(steps)},
    }
    settings = settings_for(problem)
    if settings is not None:
        shown[RESERVED] = {"bytes": requests_of(LiveRanges(problem), order).profile(settings)}
    samples = _samples([rounded_us(run.at_us[v]) for v in order], live)
    for name, series in shown.items():
        before: dict[str, int] = {}
        for ts, step in samples:
            values = {key: steps[step] for key, steps in series.items()}
            if values != before:
                yield counter(pid, name, ts, values)
            before = values
        if before:
            yield counter(pid, name, max(run.step_us, samples[-1][0]), before)
    top = max(range(len(live)), key=live.__getitem__)
    yield mark(pid, tid, f"peak memory {size(live[top])}", run.at_us[order[top]])


def _samples(times: Sequence[float], live: Sequence[int]) -> list[tuple[float, int]]:
    """(when, step), in running order: of each instant the step at its peak, then the last."""
    most: dict[float, int] = {}
    last: dict[float, int] = {}
    for step, ts in enumerate(times):
        if ts not in most or live[step] > live[most[ts]]:
            most[ts] = step
        last[ts] = step
    return [(ts, step) for ts in most for step in dict.fromkeys((most[ts], last[ts]))]
