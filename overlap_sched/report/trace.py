"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order under each other.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each a row per
stream, arrows from each launch over its collective to its waits, and memory as counters. Measured steps may follow as
further processes (:mod:`overlap_sched.report.trace_measured`). Each process says in its name whether it is simulated.

Times are microseconds, rounded to nanoseconds, which is what Perfetto keeps: start and end alike, so that rows stay
free of overlaps. Perfetto binds an arrow's end to the span of its row that stands last in front of it in time and
file, so it is written right behind that span. Launches and waits take no time of their own in the replay: they stand in
a row of their own, one entry per instant, a launch where the compute stream reaches it, a wait where it lets the
compute stream go on. What a wait costs is in the compute row, as ``exposed: NAME``.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import to_builtins

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.answers import contention_figures
from overlap_sched.report.colours import PURPOSES, TRACE_COMPUTE, TRACE_EXPOSED
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import Timeline, memory_by_kind, timeline
from overlap_sched.report.trace_measured import Event, MeasuredStep, Place, place_of, rounded_us
from overlap_sched.report.units import size
from overlap_sched.report.words.graph import by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import settings_for, why_text
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.task import Candidate
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges


def named(what: Literal["process", "thread"], pid: int, tid: int, name: str) -> list[Event]:
    """Name a process or a row (thread); they are listed by their ids."""
    args = {"name": name, "sort_index": pid if what == "process" else tid}
    return [{"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": tid, "args": {key: of}} for key, of in args.items()]


def span(pid: int, tid: int, name: str, category: str, start_us: float, end_us: float, args: Event) -> Event:
    """Something with a duration, which may be 0."""
    start, end = rounded_us(start_us), rounded_us(end_us)
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": start}
    return {**event, "dur": round(end - start, 3), "args": args}


def arrow(phase: Literal["s", "t", "f"], pid: int, tid: int, id_: int, at_us: float) -> Event:
    """Where an arrow begins (``s``), passes (``t``) or ends (``f``): at the span of its row in front of it in the file.

    All parts of an arrow have the same category, which is its name, too, and the same id, unique within the category.
    """
    event = {"ph": phase, "pid": pid, "tid": tid, "name": _ARROW, "cat": _ARROW, "id": id_, "ts": rounded_us(at_us)}
    return {**event, **({"bp": "e"} if phase == "f" else {})}


FIRST_MEASURED_ROW = 10**6
"""Thread ids of measured processes start here."""
ROWS = 1000
"""Thread ids of a process start at so many times its id (unique in the trace); the compute stream has the first."""
_IDS = 2**32
"""Ids of its arrows, likewise: the id of the node at the end is added."""
_ARROW = "collective"


class _Arrow(NamedTuple):
    """From the launch of a collective to one of its waits, or to the collective itself where nothing here waits.

    Attributes:
        id: Unique in the trace.
        launch: The collective. end: The wait, or again the collective.
    """

    id: int
    launch: int
    end: int


def original_decisions(problem: Problem) -> tuple[Decision, ...]:
    """Find what blocks each collective of the original order; none of them was placed by the scheduler."""
    run, order = replay(problem, problem.original_order), problem.original_order
    return decisions(problem, run, Candidate(order, run.step_us, peak_bytes=0))


def row_events(problem: Problem, pid: int, name: str, order: Sequence[int], why: Sequence[Decision]) -> Iterator[Event]:
    """The process and its rows by name, then what is in the rows; ``why``: a record of each collective."""
    line, run = timeline(problem, order), replay(problem, order)
    compute, points = pid * ROWS, pid * ROWS + 1
    purposes = group_purposes(problem)
    rows = {group: points + 1 + i for i, group in enumerate(by_purpose(line.streams, purposes))}
    names, called = {compute: "compute", points: "launches and waits"}, group_names(purposes)
    names |= {row: f"{called[group]} ({problem.groups[group].size} ranks)" for group, row in rows.items()}
    yield from named("process", pid, 0, name)
    for row, row_name in names.items():
        yield from named("thread", pid, row, row_name)
    arrows = defaultdict[int, list[_Arrow]](list)
    for one in _arrows(problem, pid, run):
        arrows[one.launch].append(one)
    yield from _compute(problem, pid, compute, line)
    yield from _points(problem, pid, points, order, run, arrows)
    reasons = {d.collective: d for d in why}
    for group, row in rows.items():
        for at in line.streams[group]:
            node = problem.nodes[at.node]
            args = {"op": node.op, "bytes": node.bytes, "id": at.node, "module": node.module, "for": purposes[group]}
            args |= _why(problem, reasons[at.node])
            event = span(pid, row, node.name, "collective", at.start_us, at.end_us, args)
            yield {**event, "cname": PURPOSES[purposes[group]].trace}
            for one in arrows[at.node]:  # only through those of some length, which alone are found again
                if one.end == one.launch or rounded_us(at.start_us) < rounded_us(at.end_us):
                    yield arrow("f" if one.end == one.launch else "t", pid, row, one.id, at.start_us)


def _arrows(problem: Problem, pid: int, run: Replay) -> Iterator[_Arrow]:
    """All arrows but those of no length; a collective of no length has no span at which one could end."""
    for v in problem.collectives:
        for end in problem.waits.get(v, (v,)):
            begin_us = run.start_us[v] if end == v else run.at_us[v]
            if rounded_us(begin_us) < rounded_us(run.finish_us[end]):
                yield _Arrow(pid * _IDS + end, v, end)


def _compute(problem: Problem, pid: int, row: int, line: Timeline) -> Iterator[Event]:
    for at in line.compute:
        node = problem.nodes[at.node]
        args = {"op": node.op, "flops": node.flops, "bytes": node.bytes, "id": at.node}
        yield {**span(pid, row, node.name, "compute", at.start_us, at.end_us, args), "cname": TRACE_COMPUTE}
    for at in line.exposed:
        wait = problem.nodes[at.node]
        launched = "" if wait.collective is None else problem.nodes[wait.collective].name
        args = {"waits_for": launched, "id": at.node}
        event = span(pid, row, f"exposed: {wait.name}", "exposed", at.start_us, at.end_us, args)
        yield {**event, "cname": TRACE_EXPOSED}


def _points(
    problem: Problem, pid: int, row: int, order: Sequence[int], run: Replay, arrows: Mapping[int, Sequence[_Arrow]]
) -> Iterator[Event]:
    """Launches and waits, those of one instant as one entry, and where their arrows begin and end."""
    ends = {one.end: one.id for of in arrows.values() for one in of if one.end != one.launch}
    instants = defaultdict[float, list[int]](list)
    for v in order:
        kind = problem.nodes[v].kind
        if kind in (Kind.COLLECTIVE, Kind.WAIT):
            instants[rounded_us(run.at_us[v] if kind is Kind.COLLECTIVE else run.finish_us[v])].append(v)
    for ts, nodes in instants.items():
        args = dict[str, list[str]]()
        for what, kind in (("launch", Kind.COLLECTIVE), ("wait", Kind.WAIT)):
            if names := [problem.nodes[v].name for v in nodes if problem.nodes[v].kind is kind]:
                args[what] = names
        more = {what: f" and {len(names) - 2:,} more" if len(names) > 2 else "" for what, names in args.items()}
        entry = "; ".join(f"{what} {', '.join(names[:2])}{more[what]}" for what, names in args.items())
        yield span(pid, row, entry, "launches and waits", ts, ts, args)
        for v in nodes:
            for one in arrows.get(v, ()):
                yield arrow("s", pid, row, one.id, ts)
            if v in ends:
                yield arrow("f", pid, row, ends[v], ts)


def _why(problem: Problem, decision: Decision) -> Event:
    """The record of a decision as arguments, nodes by name."""
    nodes, held = problem.nodes, decision.held_node
    return {
        "why": why_text(problem, decision),
        **asdict(decision),
        "under": [nodes[v].name for v in decision.under],
        "held_node": None if held is None else nodes[held].name,
    }


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
            *memory_events(original, ORIGINAL, original.original_order),
            *row_events(problem, SCHEDULED, "scheduled (simulated)", schedule.order, schedule.decisions),
            *memory_events(problem, SCHEDULED, schedule.order),
            *measured_events(measured, MEASURED),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": problem.name,
            "memory_model": problem.memory_model,
            "contention": to_builtins(contention_figures(problem.contention)),
            "note": "original and scheduled: simulated, replay of one compute stream and one stream per process group"
            + ("; the others: measured" if measured else ""),
            "measured": [step.about() for step in measured],
        },
    }


LIVE, BY_KIND, RESERVED = "memory: live", "memory: live, by kind", "memory: reserved"


def memory_events(problem: Problem, pid: int, order: Sequence[int]) -> Iterator[Event]:
    """All counters of an order, and a mark at its peak."""
    run, kinds = replay(problem, order), memory_by_kind(problem, order)
    live = [sum(steps) for steps in zip(*kinds.values(), strict=True)]
    shown: dict[str, Mapping[str, Sequence[int]]] = {
        LIVE: {"bytes": live},
        BY_KIND: {kind: steps for kind, steps in kinds.items() if any(steps)},
    }
    settings = settings_for(problem)
    if settings is not None:
        shown[RESERVED] = {"bytes": requests_of(LiveRanges(problem), order).profile(settings)}
    samples = _samples([rounded_us(run.at_us[v]) for v in order], live)
    for name, series in shown.items():
        track, before = {"ph": "C", "pid": pid, "tid": 0, "name": name}, dict[str, int]()
        for ts, step in samples:
            values = {key: steps[step] for key, steps in series.items()}
            if values != before:
                yield {**track, "ts": ts, "args": values}
            before = values
        if before:
            yield {**track, "ts": rounded_us(max(run.step_us, samples[-1][0])), "args": before}
    top = max(range(len(live)), key=live.__getitem__)
    at_us = rounded_us(run.at_us[order[top]])
    yield {"ph": "i", "s": "p", "pid": pid, "tid": pid * ROWS, "name": f"peak memory {size(live[top])}", "ts": at_us}


def _samples(times: Sequence[float], live: Sequence[int]) -> list[tuple[float, int]]:
    """(when, step), in running order: of each instant the step at its peak, then the last."""
    most: dict[float, int] = {}
    last: dict[float, int] = {}
    for step, ts in enumerate(times):
        if ts not in most or live[step] > live[most[ts]]:
            most[ts] = step
        last[ts] = step
    return [(ts, step) for ts in most for step in dict.fromkeys((most[ts], last[ts]))]


def measured_events(steps: Sequence[MeasuredStep], pid: int) -> Iterator[Event]:
    """The steps one behind the other, each process of a trace as one; ``pid``: the first id."""
    row = count(FIRST_MEASURED_ROW)
    for step in steps:
        pids: dict[str, int] = {}
        rows: dict[Place, int] = {}
        for e in step.events:
            place = process, thread = place_of(e)
            if process not in pids:
                pids[process], pid = pid, pid + 1
                names = (step.names.get((what, process, "")) for what in ("process_name", "process_labels"))
                called = " ".join(filter(None, names)) or f"process {process}"
                number = "" if step.number is None else f", step {step.number}"
                who = Path(step.path).name if step.rank is None else f"rank {step.rank}"
                yield from named("process", pids[process], 0, f"{who}: {called} (measured{number})")
            if place not in rows:
                rows[place] = next(row)
                name = step.names.get(("thread_name", *place)) or f"thread {thread}"
                yield from named("thread", pids[process], rows[place], name)
            yield {**e, "pid": pids[process], "tid": rows[place]}
