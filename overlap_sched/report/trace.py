"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order, side by side.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each, one
row (thread) per stream and a counter track for memory. Complete events (``"ph": "X"``) with times in microseconds,
rounded to nanoseconds, which is what Perfetto keeps; rounding start and end alike keeps rows free of overlaps.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overlap_sched.problem import Problem
from overlap_sched.report.contention_text import contention_figures
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import Span, Timeline, timeline
from overlap_sched.report.units import size
from overlap_sched.scheduler.result import Decision, Schedule

_ROWS = 1000
"""Thread ids of a process start at so many times its id (unique in the trace); the compute stream has the first."""

Event = dict[str, Any]


def write_trace(schedule: Schedule, path: str | Path) -> None:
    """Write the trace of a schedule as JSON.

    Raises:
        OutputError: The file cannot be written.
    """
    trace = {
        "traceEvents": trace_events(schedule),
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": schedule.problem.name,
            "memory_model": schedule.problem.memory_model,
            "contention": contention_figures(schedule.problem.contention),
            "note": "simulated: replay of one compute stream and one stream per process group",
        },
    }
    write_file(path, json.dumps(trace, allow_nan=False, separators=(",", ":")).encode())


def trace_events(schedule: Schedule) -> list[Event]:
    """All events: metadata, spans and memory samples of both orders."""
    problem = schedule.problem
    decisions = {d.collective: d for d in schedule.decisions}
    before = timeline(problem, problem.original_order)
    after = timeline(problem, schedule.order)
    return [
        *_process(problem, 1, "original", before, {}),
        *_process(problem, 2, "scheduled", after, decisions),
    ]


def _process(problem: Problem, pid: int, name: str, line: Timeline, decisions: dict[int, Decision]) -> Iterator[Event]:
    yield _named("process_name", pid, 0, f"{name} (simulated)")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    compute = pid * _ROWS
    rows = {group: compute + 1 + i for i, group in enumerate(line.streams)}
    names = {compute: "compute"} | {row: f"group {g} ({problem.groups[g].size} ranks)" for g, row in rows.items()}
    for row, row_name in names.items():
        yield _named("thread_name", pid, row, row_name)
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": row, "args": {"sort_index": row}}

    for span in line.compute:
        node = problem.nodes[span.node]
        args = {"op": node.op, "flops": node.flops, "bytes": node.bytes, "id": span.node}
        yield _complete(pid, compute, node.name, "compute", span, args)
    for span in line.exposed:
        yield _complete(pid, compute, *_stall(problem, span))
    for group, spans in line.streams.items():
        for span in spans:
            node = problem.nodes[span.node]
            args = {"op": node.op, "bytes": node.bytes, "id": span.node, **_why(problem, decisions.get(span.node))}
            yield _complete(pid, rows[group], node.name, "collective", span, args)
    yield from _memory(pid, line)


def _stall(problem: Problem, span: Span) -> tuple[str, str, Span, Event]:
    wait = problem.nodes[span.node]
    launched = "" if wait.collective is None else problem.nodes[wait.collective].name
    return f"exposed: {wait.name}", "exposed", span, {"waits_for": launched, "id": span.node}


def _why(problem: Problem, decision: Decision | None) -> Event:
    """The decision record as arguments; the original order has none."""
    if decision is None:
        return {}
    return {
        "reason": decision.reason,
        "launch_us": decision.launch_us,
        "wait_us": decision.wait_us,
        "hidden_us": decision.hidden_us,
        "exposed_us": decision.exposed_us,
        "under": [problem.nodes[v].name for v in decision.under],
        "held_by": decision.held_by,
        "held_node": None if decision.held_node is None else problem.nodes[decision.held_node].name,
        "over_bytes": decision.over_bytes,
        "position": decision.position,
        "original_position": decision.original_position,
    }


def _complete(pid: int, tid: int, name: str, category: str, span: Span, args: Event) -> Event:
    start, end = round(span.start_us, 3), round(span.end_us, 3)
    event = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": start,
        "dur": round(end - start, 3),
    }
    if category == "exposed":
        event["cname"] = "terrible"  # red in chrome://tracing; Perfetto colours by name
    return {**event, "args": args}


def _memory(pid: int, line: Timeline) -> Iterator[Event]:
    """Per instant the most that was live, so that no peak is lost, then what stayed live; a mark at the peak."""
    most: dict[float, int] = {}
    last: dict[float, int] = {}
    for at_us, live in (*line.memory, (line.step_us, line.memory[-1][1])):
        ts = round(at_us, 3)
        most[ts] = max(live, most.get(ts, 0))
        last[ts] = live
    for ts, live in most.items():
        for value in (live,) if live == last[ts] else (live, last[ts]):
            yield {"ph": "C", "pid": pid, "tid": 0, "name": "memory", "ts": ts, "args": {"bytes": value}}
    peak_us = max(most, key=lambda ts: most[ts])
    name = f"peak memory {size(most[peak_us])}"
    yield {"ph": "i", "s": "p", "pid": pid, "tid": pid * _ROWS, "name": name, "ts": peak_us}


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
