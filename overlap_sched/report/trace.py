"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order under each other.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each a row per
stream, arrows from each launch over its collective to its waits, and memory as counters. All of it is simulated.

Times are microseconds, rounded to nanoseconds, which is what Perfetto keeps: start and end alike, so that rows stay
free of overlaps. Perfetto binds an arrow's end to the span of its row that stands last in front of it in time and
file, so it is written right behind that span. Launches and waits take no time of their own in the replay: they stand in
a row of their own, one entry per instant, a launch where the compute stream reaches it, a wait where it lets the
compute stream go on. What a wait costs is in the compute row, as ``exposed: NAME``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from msgspec import to_builtins

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.answers import collective_figures
from overlap_sched.report.colours import PURPOSES, TRACE_COMPUTE, TRACE_EXPOSED
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import memory_by_kind, timeline
from overlap_sched.report.units import listed, size
from overlap_sched.report.words.graph import by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import WHY, blocked_by, settings_for
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.task import Candidate
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges

Event = dict[str, Any]
ROWS = 1000
"""Thread ids of a process start at so many times its id (unique in the trace); the compute stream has the first."""
_ARROW = "collective"
LIVE, BY_KIND, RESERVED = "memory: live", "memory: live, by kind", "memory: reserved"


def write_trace(schedule: Schedule, path: str | Path, *, original: Problem | None = None) -> None:
    """Write the trace of a schedule as JSON.

    Args:
        schedule: Whose order is the scheduled one.
        path: Of the file.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).

    Raises:
        OutputError: The file cannot be written.
    """
    trace = trace_document(schedule, original or schedule.problem)
    write_file(path, json.dumps(trace, allow_nan=False, separators=(",", ":")).encode())


def trace_document(schedule: Schedule, original: Problem) -> dict[str, Any]:
    """Return the trace; arguments as of :func:`write_trace`."""
    problem, order = schedule.problem, original.original_order
    run = replay(original, order)
    why = decisions(original, run, Candidate(order, run.step_us, peak_bytes=0))  # what binds them where they are
    return {
        "traceEvents": [
            *_row_events(original, 1, "original (simulated)", order, why),
            *_memory_events(original, 1, order),
            *_row_events(problem, 2, "scheduled (simulated)", schedule.order, schedule.decisions),
            *_memory_events(problem, 2, schedule.order),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": problem.name,
            "memory_model": problem.memory_model,
            "contention": to_builtins(problem.contention or None),
        },
    }


def _round_us(at_us: float) -> float:
    return round(at_us, 3)


def _span(pid: int, tid: int, name: str, category: str, start_us: float, end_us: float, **more: Any) -> Event:
    """Return something with a duration, which may be 0."""
    start, end = _round_us(start_us), _round_us(end_us)
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": start}
    return {**event, "dur": _round_us(end - start), **more}


def _arrow(phase: Literal["s", "t", "f"], pid: int, tid: int, end: int, at_us: float) -> Event:
    """Return where an arrow begins (``s``), passes (``t``) or ends (``f``): at the span in front of it in the file.

    All parts of an arrow have one category, which is its name, too, and one id: that of the node at its end.
    """
    event = {"ph": phase, "pid": pid, "tid": tid, "name": _ARROW, "cat": _ARROW, "id": pid * 2**32 + end}
    return {**event, "ts": _round_us(at_us), **({"bp": "e"} if phase == "f" else {})}


def _row_events(
    problem: Problem, pid: int, name: str, order: Sequence[int], records: Sequence[Decision]
) -> Iterator[Event]:
    """The process and its rows by name, then what is in the rows; ``records``: of each collective."""
    nodes, line, run = problem.nodes, timeline(problem, order), replay(problem, order)
    compute, points, purposes = pid * ROWS, pid * ROWS + 1, group_purposes(problem)
    rows = {group: points + 1 + i for i, group in enumerate(by_purpose(line.streams, purposes))}
    names, called = {compute: "compute", points: "launches and waits"}, group_names(purposes)
    names |= {row: f"{called[group]} ({problem.groups[group].size} ranks)" for group, row in rows.items()}
    for what, row, called_so in (("process", 0, name), *(("thread", *pair) for pair in names.items())):
        for key, value in (("name", called_so), ("sort_index", row or pid)):  # rows are listed by their ids
            yield {"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": row, "args": {key: value}}
    for at in line.compute:
        node = nodes[at.node]
        args = {"op": node.op, "flops": node.flops, "bytes": node.bytes, "id": at.node}
        yield _span(pid, compute, node.name, "compute", *at[1:], args=args, cname=TRACE_COMPUTE)
    for at in line.exposed:
        wait = nodes[at.node]
        args = {"waits_for": "" if wait.collective is None else nodes[wait.collective].name, "id": at.node}
        yield _span(pid, compute, f"exposed: {wait.name}", "exposed", *at[1:], args=args, cname=TRACE_EXPOSED)
    # from each launch to its waits, or to the collective where nothing here waits; none of no length, which has no span
    arrows = {
        v: [
            end
            for end in problem.waits.get(v, (v,))
            if _round_us(run.start_us[v] if end == v else run.at_us[v]) < _round_us(run.finish_us[end])
        ]
        for v in problem.collectives
    }
    yield from _points(problem, pid, points, order, run, arrows)
    reasons = {d.collective: d for d in records}
    for group, row in rows.items():
        for at in line.streams[group]:
            v, node = at.node, nodes[at.node]
            why = f"{WHY[reasons[v].reason]}; blocked by {blocked_by(problem, reasons[v])}"
            said = {"why": why, "for": purposes[group], "module": node.module}
            args = {"id": v, **said, **to_builtins(collective_figures(problem, reasons[v]))}
            yield _span(pid, row, node.name, "collective", *at[1:], args=args, cname=PURPOSES[purposes[group]].trace)
            for end in arrows[v]:  # only through those of some length, which alone are found again
                if end == v or _round_us(at.start_us) < _round_us(at.end_us):
                    yield _arrow("f" if end == v else "t", pid, row, end, at.start_us)


def _points(
    problem: Problem, pid: int, row: int, order: Sequence[int], run: Replay, arrows: Mapping[int, Sequence[int]]
) -> Iterator[Event]:
    """Launches and waits, those of one instant as one entry, and where their arrows begin and end."""
    nodes, ends = problem.nodes, {end for v, of in arrows.items() for end in of if end != v}
    shown = (v for v in order if nodes[v].kind in (Kind.COLLECTIVE, Kind.WAIT))
    for ts, found in groupby(shown, key=lambda v: _round_us(run.at_us[v] if v in arrows else run.finish_us[v])):
        instant, args = list(found), dict[str, list[str]]()
        for v in instant:
            args.setdefault("launch" if v in arrows else "wait", []).append(nodes[v].name)
        name = "; ".join(f"{what} {listed(args[what], 2)}" for what in sorted(args))
        yield _span(pid, row, name, "launches and waits", ts, ts, args=args)
        for v in instant:
            yield from (_arrow("s", pid, row, end, ts) for end in arrows.get(v, ()))
            if v in ends:
                yield _arrow("f", pid, row, v, ts)


def _memory_events(problem: Problem, pid: int, order: Sequence[int]) -> Iterator[Event]:
    """All counters of an order, and a mark at its peak: of each instant the step at its peak, then the last."""
    run, kinds = replay(problem, order), memory_by_kind(problem, order)
    live = [sum(steps) for steps in zip(*kinds.values(), strict=True)]
    shown: dict[str, Mapping[str, Sequence[int]]] = {
        LIVE: {"bytes": live},
        BY_KIND: {kind: steps for kind, steps in kinds.items() if any(steps)},
    }
    if (settings := settings_for(problem)) is not None:
        shown[RESERVED] = {"bytes": requests_of(LiveRanges(problem), order).profile(settings)}
    samples = []
    for ts, found in groupby(range(len(order)), key=lambda step: _round_us(run.at_us[order[step]])):
        steps = list(found)
        samples += [(ts, step) for step in dict.fromkeys((max(steps, key=live.__getitem__), steps[-1]))]
    for name, series in shown.items():
        track, before = {"ph": "C", "pid": pid, "tid": 0, "name": name}, dict[str, int]()
        for ts, step in samples:
            values = {key: of[step] for key, of in series.items()}
            if values != before:
                yield {**track, "ts": ts, "args": values}
            before = values
        if before:
            yield {**track, "ts": _round_us(max(run.step_us, samples[-1][0])), "args": before}
    top = max(range(len(live)), key=live.__getitem__)
    mark = {"ph": "i", "s": "p", "pid": pid, "tid": pid * ROWS, "name": f"peak memory {size(live[top])}"}
    yield {**mark, "ts": _round_us(run.at_us[order[top]])}
