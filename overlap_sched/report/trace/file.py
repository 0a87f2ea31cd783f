"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order under each other.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each a row per
stream, arrows from launches to waits (:mod:`overlap_sched.report.trace.rows`), and memory as counters
(:mod:`overlap_sched.report.trace.counters`). Measured steps may follow as further processes
(:mod:`overlap_sched.report.trace.measured`). Each process says in its name whether it is simulated or measured.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Problem
from overlap_sched.report.files import write_file
from overlap_sched.report.trace.counters import memory_events
from overlap_sched.report.trace.events import Event
from overlap_sched.report.trace.measured import MeasuredStep, measured_events
from overlap_sched.report.trace.rows import ROWS, original_decisions, row_events
from overlap_sched.report.words.contention import contention_figures
from overlap_sched.scheduler.result import Schedule

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
