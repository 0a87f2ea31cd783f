"""One order as a process of a trace: a row per stream, and arrows from each launch over its collective to its waits.

Launches and waits take no time of their own in the replay. They stand in a row of their own, one entry per instant: a
launch where the compute stream reaches it, a wait where it lets the compute stream go on. What a wait costs is in the
compute row, as ``exposed: NAME``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.colours import PURPOSES, TRACE_COMPUTE, TRACE_EXPOSED
from overlap_sched.report.timeline import Timeline, timeline
from overlap_sched.report.trace.events import Event, arrow, process_named, rounded_us, row_named, span
from overlap_sched.report.words.purpose import Purpose, by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import why_text
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.task import Candidate

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
    names = {compute: "compute", points: "launches and waits"}
    called = group_names(purposes)
    names |= {row: f"{called[group]} ({problem.groups[group].size} ranks)" for group, row in rows.items()}
    yield from process_named(pid, name)
    for row, row_name in names.items():
        yield from row_named(pid, row, row_name)
    arrows = _arrows(problem, pid, run)
    yield from _compute(problem, pid, compute, line)
    yield from _points(problem, pid, points, order, run, arrows)
    yield from _streams(problem, pid, rows, line, purposes, {d.collective: d for d in why}, arrows)


def _arrows(problem: Problem, pid: int, run: Replay) -> list[_Arrow]:
    """All arrows but those of no length; a collective of no length has no span at which one could end."""
    found = []
    for v in problem.collectives:
        for end in problem.waits.get(v, (v,)):
            begin_us = run.start_us[v] if end == v else run.at_us[v]
            if rounded_us(begin_us) < rounded_us(run.finish_us[end]):
                found.append(_Arrow(pid * _IDS + end, v, end))
    return found


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
    problem: Problem, pid: int, row: int, order: Sequence[int], run: Replay, arrows: Sequence[_Arrow]
) -> Iterator[Event]:
    """Launches and waits, those of one instant as one entry, and where their arrows begin and end."""
    begins: dict[int, list[int]] = {}
    for one in arrows:
        begins.setdefault(one.launch, []).append(one.id)
    ends = {one.end: one.id for one in arrows if one.end != one.launch}
    instants: dict[float, list[int]] = {}
    for v in order:
        kind = problem.nodes[v].kind
        if kind in (Kind.COLLECTIVE, Kind.WAIT):
            at_us = run.at_us[v] if kind is Kind.COLLECTIVE else run.finish_us[v]
            instants.setdefault(rounded_us(at_us), []).append(v)
    for ts, nodes in instants.items():
        here = [problem.nodes[v] for v in nodes]
        named = {
            "launch": [node.name for node in here if node.kind is Kind.COLLECTIVE],
            "wait": [node.name for node in here if node.kind is Kind.WAIT],
        }
        args = {what: names for what, names in named.items() if names}
        yield span(pid, row, _entry(args), "launches and waits", ts, ts, args)
        for v in nodes:
            for id_ in begins.get(v, ()):
                yield arrow("s", pid, row, _ARROW, id_, ts)
            if v in ends:
                yield arrow("f", pid, row, _ARROW, ends[v], ts)


def _entry(named: Mapping[str, Sequence[str]]) -> str:
    """Say what an instant launches and waits for: two of each by name."""
    parts = []
    for what, names in named.items():
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        parts.append(f"{what} {', '.join(names[:2])}{more}")
    return "; ".join(parts)


def _streams(
    problem: Problem,
    pid: int,
    rows: Mapping[str, int],
    line: Timeline,
    purposes: Mapping[str, Purpose],
    why: Mapping[int, Decision],
    arrows: Sequence[_Arrow],
) -> Iterator[Event]:
    """Collectives, and the arrows through them: only through those of some length, which alone are found again."""
    through: dict[int, list[_Arrow]] = {}
    for one in arrows:
        through.setdefault(one.launch, []).append(one)
    for group, row in rows.items():
        for at in line.streams[group]:
            node = problem.nodes[at.node]
            args = {"op": node.op, "bytes": node.bytes, "id": at.node, "module": node.module, "for": purposes[group]}
            args |= _why(problem, why[at.node])
            event = span(pid, row, node.name, "collective", at.start_us, at.end_us, args)
            yield {**event, "cname": PURPOSES[purposes[group]].trace}
            for one in through.get(at.node, ()):
                if one.end == one.launch:
                    yield arrow("f", pid, row, _ARROW, one.id, at.start_us)
                elif rounded_us(at.start_us) < rounded_us(at.end_us):
                    yield arrow("t", pid, row, _ARROW, one.id, at.start_us)


def _why(problem: Problem, decision: Decision) -> Event:
    """The record of a decision as arguments."""
    return {
        "why": why_text(problem, decision),
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
