"""All that the HTML page of a schedule shows, as data: the page draws it and adds nothing of its own.

Times are microseconds, rounded to nanoseconds where they are drawn; the figures are those of ``plan --json``,
unrounded. What the page stacks and lists at an instant it counts from live ranges, by the rule of
:mod:`overlap_sched.judge.liveness`: a storage is live from position ``first`` to ``last`` of an order, both included.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from overlap_sched.judge.replay import replay
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order, Problem
from overlap_sched.report.causes import WORDS, causes, last_compute_us, stalls_by_cause
from overlap_sched.report.contention_text import with_contention_line
from overlap_sched.report.memory_kinds import IN_FLIGHT, MEMORY_KINDS, flights, memory_kinds
from overlap_sched.report.reserved_text import not_held, reserved_changes, reserved_figures, reserved_rows
from overlap_sched.report.text import budget_words, figures, most_exposed, refusal, summary_rows, why_text
from overlap_sched.report.units import printable
from overlap_sched.scheduler.result import Decision, Figures, Schedule

COLUMNS = 5
"""Of the summary: what, original, scheduled, change, limit."""


@dataclass(frozen=True)
class Nodes:
    """Columns, indexed by node id; ``op`` and ``group`` count in lists of their own (group -1: none).

    ``collective`` is, of a wait, the id of its collective (-1: not a wait, or launched before this graph).
    """

    name: tuple[str, ...]
    kind: tuple[str, ...]
    op: tuple[int, ...]
    group: tuple[int, ...]
    collective: tuple[int, ...]


@dataclass(frozen=True)
class Storages:
    """Columns, one row per storage that is ever live; ``kind`` counts in :attr:`Page.memory_kinds`.

    ``maker`` is the id of the node that allocates it.
    """

    bytes: tuple[int, ...]
    kind: tuple[int, ...]
    maker: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One order in time.

    Attributes:
        title: ``original`` or ``scheduled``.
        step_us, exposed_us, peak_bytes: Its figures, unrounded. peak_at: the first position at the peak.
        order: Node ids in the order run.
        at_us: Per position, when the compute stream reached the node.
        start_us, finish_us: Per node id, when it ran (a collective: on its stream; a wait: reached, and left).
        first, last: Per row of :class:`Storages`, the positions between which it is live, both included.
        flights: (row of :class:`Storages`, first, last): where a collective in flight holds it.
    """

    title: str
    step_us: float
    exposed_us: float
    peak_bytes: int
    peak_at: int
    order: Order
    at_us: tuple[float, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    flights: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Collective:
    """One row of the table.

    Attributes:
        node: Its id. bytes, time_us: as of the problem.
        earlier: By how many positions it is launched sooner than originally (negative: later).
        original_exposed_us, exposed_us, hidden_us: stalls at its waits, before and after; time under compute.
        causes: Of its stalls: (number in :attr:`Page.causes`, microseconds).
        why: Why it is launched there, and what kept it from being hidden better, in words.
    """

    node: int
    bytes: int
    time_us: float
    earlier: int
    original_exposed_us: float
    exposed_us: float
    hidden_us: float
    causes: tuple[tuple[int, float], ...]
    why: str


@dataclass(frozen=True)
class Page:
    """Everything; ``causes`` are (words, microseconds, number of collectives), the most expensive first.

    ``figures`` is the object that ``plan --json`` prints, as far as a schedule tells it.
    """

    figures: Mapping[str, Any]
    summary: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]
    budget_bytes: int
    ops: tuple[str, ...]
    groups: tuple[str, ...]
    memory_kinds: tuple[str, ...]
    in_flight: int
    causes: tuple[tuple[str, float, int], ...]
    nodes: Nodes
    storages: Storages
    runs: tuple[Run, ...]
    collectives: tuple[Collective, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries, keys as the attributes."""
        return asdict(self)


def page_of(schedule: Schedule, more: Mapping[str, Any] | None = None) -> Page:
    """What the page of a schedule shows.

    Args:
        schedule: Of a problem.
        more: Figures beyond those that a schedule tells (``prices``).
    """
    problem = schedule.problem
    reserved = reserved_changes(schedule)
    ranges = LiveRanges(problem)
    shown = [live.storage for live in ranges.of(problem.original_order)]
    kinds = memory_kinds(problem)
    ops = tuple(dict.fromkeys(node.op for node in problem.nodes))
    used = {problem.nodes[v].group for v in problem.collectives}
    groups = tuple(name for name in problem.groups if name in used)
    rows = [*summary_rows(schedule), *reserved_rows(reserved)]
    return Page(
        figures={**figures(schedule), **(more or {}), "reserved": reserved_figures(reserved)},
        summary=tuple((*row, *[""] * (COLUMNS - len(row))) for row in rows),
        remarks=_remarks(schedule),
        budget_bytes=schedule.budget_bytes,
        ops=tuple(map(printable, ops)),
        groups=tuple(f"{printable(name)} ({problem.groups[name].size} ranks)" for name in groups),
        memory_kinds=MEMORY_KINDS,
        in_flight=MEMORY_KINDS.index(IN_FLIGHT),
        causes=tuple((WORDS[c.name], c.exposed_us, c.collectives) for c in causes(schedule)),
        nodes=_nodes(problem, ops, groups),
        storages=Storages(
            bytes=tuple(problem.storages[s].bytes for s in shown),
            kind=tuple(MEMORY_KINDS.index(kinds[s]) for s in shown),
            maker=tuple(problem.allocator[s] for s in shown),
        ),
        runs=(
            _run(ranges, "original", problem.original_order, schedule.original),
            _run(ranges, "scheduled", schedule.order, schedule.scheduled),
        ),
        collectives=_collectives(schedule),
    )


def _remarks(schedule: Schedule) -> tuple[str, ...]:
    """What the table of figures needs to be read, then what went otherwise than wished."""
    problem = schedule.problem
    simulated = (
        f"Every figure on this page is simulated, in the {problem.memory_model} memory model: one compute stream, one "
        "stream per process group. Limits: a lower bound on any order's step; the memory budget, "
        f"{budget_words(schedule)}."
    )
    kept = "" if schedule.fell_back is None else f"The original order was kept: {printable(schedule.fell_back)}."
    contended = with_contention_line(simulated, problem.contention).splitlines()
    return tuple(filter(None, (*contended, kept, not_held(schedule))))


def _nodes(problem: Problem, ops: tuple[str, ...], groups: tuple[str, ...]) -> Nodes:
    nodes = problem.nodes
    op_at, group_at = ({name: at for at, name in enumerate(names)} for names in (ops, groups))
    return Nodes(
        name=tuple(printable(node.name) for node in nodes),
        kind=tuple(node.kind.value for node in nodes),
        op=tuple(op_at[node.op] for node in nodes),
        group=tuple(-1 if node.group is None else group_at[node.group] for node in nodes),
        collective=tuple(-1 if node.collective is None else node.collective for node in nodes),
    )


def _run(ranges: LiveRanges, title: str, order: Order, measured: Figures) -> Run:
    problem = ranges.problem
    run, live = replay(problem, order), ranges.of(order)
    row = {span.storage: at for at, span in enumerate(live)}
    return Run(
        title=title,
        step_us=measured.step_us,
        exposed_us=measured.exposed_us,
        peak_bytes=measured.peak_bytes,
        peak_at=measured.peak_at,
        order=order,
        at_us=tuple(round(run.at_us[v], 3) for v in order),
        start_us=tuple(round(us, 3) for us in run.start_us),
        finish_us=tuple(round(us, 3) for us in run.finish_us),
        first=tuple(span.first for span in live),
        last=tuple(span.last for span in live),
        flights=tuple((row[s], *flight) for s, found in flights(problem, order).items() for flight in found),
    )


def _collectives(schedule: Schedule) -> tuple[Collective, ...]:
    """The most exposed first."""
    problem = schedule.problem
    before, after = replay(problem, problem.original_order), replay(problem, schedule.order)
    number = {cause.name: at for at, cause in enumerate(causes(schedule))}
    last_us = last_compute_us(problem, after)
    return tuple(
        Collective(
            node=d.collective,
            bytes=problem.nodes[d.collective].bytes,
            time_us=problem.nodes[d.collective].time_us,
            earlier=d.original_position - d.position,
            original_exposed_us=sum(before.stall_us[w] for w in problem.waits.get(d.collective, ())),
            exposed_us=d.exposed_us,
            hidden_us=d.hidden_us,
            causes=tuple(
                (number[name], us) for name, us in stalls_by_cause(problem, after, d, last_us).items() if us > 0
            ),
            why=_why(problem, d),
        )
        for d in most_exposed(schedule)
    )


def _why(problem: Problem, decision: Decision) -> str:
    refused = "" if decision.over_position is None else f"; {refusal(problem, decision, decision.over_position)}"
    return f"{why_text(problem, decision)}{refused}"
