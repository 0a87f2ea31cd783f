"""A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: the original and the scheduled order under each other.

Format: "Trace Event Format", the JSON that both read. Two processes, ``original`` and ``scheduled``; in each a row per
stream, arrows from each launch over its collective to its waits, and memory as counters. Each process says in its name
whether it is simulated or *measured*: of torch profiler traces, the step of median length of those that all have
(``ProfilerStep#7``), shifted to begin at 0, as clocks of machines need not agree. Kept is what the host began within
the step and what that launched on the device, even where it ran later (by correlation ids; where there are none, by
time), with arrows between them, and counters and marks. Processes and threads get ids of their own: numbers.

Times are microseconds, rounded to nanoseconds, which is what Perfetto keeps: start and end alike, so that rows stay
free of overlaps. Perfetto binds an arrow's end to the span of its row that stands last in front of it in time and
file, so it is written right behind that span. Launches and waits take no time of their own in the replay: they stand in
a row of their own, one entry per instant, a launch where the compute stream reaches it, a wait where it lets the
compute stream go on. What a wait costs is in the compute row, as ``exposed: NAME``.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import to_builtins

from overlap_sched.cost.profile import DEVICE, STEP, TraceFile, is_time, read_trace_file
from overlap_sched.errors import CostError
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.report.answers import collective_figures, contention_figures
from overlap_sched.report.colours import PURPOSES, TRACE_COMPUTE, TRACE_EXPOSED
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import Timeline, memory_by_kind, timeline
from overlap_sched.report.units import size
from overlap_sched.report.words.graph import by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import settings_for, why_text
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.task import Candidate
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges

Event = dict[str, Any]
_FLOW = ("s", "t", "f")
_POINT = ("C", "i", "I")
Place = tuple[str, str]
"""Process and thread, as the trace has them."""


def rounded_us(at_us: float) -> float:
    """To nanoseconds."""
    return round(at_us, 3)


class MeasuredStep(NamedTuple):
    """One step of one rank, as it was measured.

    Attributes:
        path: Of the trace.
        rank: As the trace says; ``None``: it does not.
        number: Of the step; ``None``: no steps are marked, it is all that is in the trace.
        us: How long the host took for it.
        events: Shifted so that it begins at 0; processes and threads as in the trace.
        names: (metadata, process, thread) -> value, for ``process_name``, ``process_labels`` and ``thread_name``.
    """

    path: str
    rank: int | None
    number: int | None
    us: float
    events: Sequence[Event]
    names: Mapping[tuple[str, str, str], str]

    def about(self) -> dict[str, Any]:
        """For people who read the file."""
        return {"trace": Path(self.path).name, "rank": self.rank, "step": self.number, "step_us": rounded_us(self.us)}


def read_measured_steps(paths: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> tuple[MeasuredStep, ...]:
    """The same step of each rank.

    Raises:
        CostError: One cannot be read, is no such trace, has nothing in it, or they share no step.
        InputTooLargeError: One is larger than the limits.
    """
    traces = [read_trace_file(path, limits) for path in paths]
    for trace in traces:
        if not trace.events:
            raise CostError(f"{trace.path}: has no event with a duration: nothing was measured.")
    marks = [_marks(trace) for trace in traces]
    shared = [number for number in marks[0] if all(number in others for others in marks)] if marks else []
    if not shared:
        steps = [", ".join("no marked step" if of is None else f"step {of}" for of in numbers) for numbers in marks]
        listed = "; ".join(f"{of.path} has {its}" for of, its in zip(traces, steps, strict=True))
        raise CostError(f"the traces share no step: {listed}. Profile the same steps on all ranks.")
    by_length = sorted(shared, key=lambda number: sum(end - begin for begin, end in (found[number] for found in marks)))
    chosen = by_length[(len(by_length) - 1) // 2]
    return tuple(_step(trace, chosen, *found[chosen]) for trace, found in zip(traces, marks, strict=True))


def _marks(trace: TraceFile) -> dict[int | None, tuple[float, float]]:
    """Begin and end of each step on the host; of all that is there, where no steps are marked.

    Without steps in which nothing begins: the profiler opens one at each ``step()``, also after the last.
    """
    events = trace.events
    marks: dict[int | None, tuple[float, float]] = {
        int(found[1]): (e.start_us, e.end_us)
        for e in events
        if (found := STEP.match(e.name)) and not e.category.startswith("gpu_")
    }
    starts = sorted(e.start_us for e in events if not STEP.match(e.name))
    full = {step: ends for step, ends in marks.items() if bisect_left(starts, ends[0]) < bisect_left(starts, ends[1])}
    return full or marks or {None: (min(e.start_us for e in events), max(e.end_us for e in events))}


def _step(trace: TraceFile, number: int | None, begin: float, end: float) -> MeasuredStep:
    host = [e for e in trace.events if e.category not in DEVICE and begin <= e.start_us < end]
    launched = {str(e.args["correlation"]) for e in host if "correlation" in e.args}

    def within(e: Event) -> bool:
        args = e.get("args")
        correlation = args.get("correlation") if isinstance(args, dict) else None
        if e.get("cat") in DEVICE and correlation is not None and launched:
            return str(correlation) in launched
        return number is None or bool(begin <= e["ts"] < end)

    timed = [e for e in trace.fields if is_time(e.get("ts"))]
    spans = [e for e in timed if e.get("ph") == "X" and is_time(e.get("dur")) and within(e)]
    points = [e for e in timed if e.get("ph") in _POINT and begin <= e["ts"] <= end]
    kept = [_shifted(e, begin) for e in [*spans, *points, *_arrows_at(timed, spans)]]
    kept.sort(key=lambda e: (e["ts"], e["ph"] != "X", -e.get("dur", 0.0)))  # who calls, who is called, arrows at them
    return MeasuredStep(trace.path, trace.rank, number, end - begin, kept, _names(trace.fields))


def _arrows_at(fields: Sequence[Event], spans: Sequence[Event]) -> list[Event]:
    """Arrows of which each end is at a span that is kept."""
    ends = defaultdict[Place, list[tuple[float, float]]](list)
    for e in sorted(spans, key=lambda e: float(e["ts"])):
        before = ends[place_of(e)]
        before.append((e["ts"], max(e["ts"] + e["dur"], before[-1][1] if before else 0.0)))

    def at_a_span(e: Event) -> bool:
        starts = ends.get(place_of(e), [])
        k = bisect_right(starts, e["ts"], key=lambda span: span[0])
        return k > 0 and starts[k - 1][1] >= e["ts"]

    parts = defaultdict[tuple[str, str, str], list[Event]](list)
    for e in fields:
        if e.get("ph") in _FLOW and type(e.get("id")) is int:
            parts[str(e.get("cat")), str(e.get("name")), str(e["id"])].append(e)
    return [
        {**e, "bp": "e"} if e["ph"] == "f" else e
        for arrow in parts.values()
        if [e["ph"] for e in arrow].count("s") == [e["ph"] for e in arrow].count("f") == 1
        and all(map(at_a_span, arrow))
        for e in sorted(arrow, key=lambda e: (e["ts"], _FLOW.index(e["ph"])))
    ]


def place_of(e: Event) -> Place:
    """Process and thread of an event."""
    return str(e.get("pid")), str(e.get("tid"))


def _shifted(e: Event, begin: float) -> Event:
    """The event with times from 0; what JSON has no number for becomes text."""
    moved = {**_finite(e), "ts": rounded_us(e["ts"] - begin)}
    if e["ph"] == "X":
        moved["dur"] = rounded_us(e["dur"])
    if e["ph"] == "I":
        moved["ph"] = "i"  # as the format has called it since
    return moved


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _names(fields: Sequence[Event]) -> dict[tuple[str, str, str], str]:
    keys = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
    found = {}
    for e in fields:
        args, key = e.get("args"), keys.get(str(e.get("name")))
        if e.get("ph") == "M" and key and isinstance(args, dict):
            thread = place_of(e)[1] if e["name"] == "thread_name" else ""
            found[e["name"], place_of(e)[0], thread] = str(args.get(key, ""))
    return found


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
            said = {"why": why_text(problem, reasons[at.node]), "for": purposes[group], "module": node.module}
            args = {"id": at.node, **said, **to_builtins(collective_figures(problem, reasons[at.node]))}
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
