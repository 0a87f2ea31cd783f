"""What is on the page of a schedule, collected: see :class:`overlap_sched.report.html.data.Page`."""

from collections.abc import Mapping, Sequence
from typing import Any

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Order, Problem
from overlap_sched.report.causes import WORDS, causes
from overlap_sched.report.colours import (
    AFTER,
    BEFORE,
    BESIDE,
    COMPUTE,
    EXPOSED,
    MEMORY,
    PURPOSES,
    REWRITTEN,
    stream_legend,
)
from overlap_sched.report.html.beside import NOTHING_ELSE, Extras, original_problem, schedule_of
from overlap_sched.report.html.collectives import collective_rows, marked_nodes, rewrite_rows
from overlap_sched.report.html.data import (
    FrontierData,
    FrontierPoint,
    Page,
    PageGraph,
    PageNodes,
    PageRun,
    PageStorages,
)
from overlap_sched.report.memory_kinds import IN_FLIGHT, MEMORY_KINDS, flights, memory_kinds
from overlap_sched.report.units import count, duration, printable, size
from overlap_sched.report.words.contention import with_contention_line
from overlap_sched.report.words.purpose import by_purpose, group_names, group_purposes
from overlap_sched.report.words.reserved import (
    reserved_figures,
    reserved_for,
    reserved_of,
    reserved_rows,
    settings_for,
    short_text,
)
from overlap_sched.report.words.rewrites import left_rows, left_title, outcome_text, rewrites_figures
from overlap_sched.report.words.schedule import budget_words, figures, summary_rows
from overlap_sched.report.words.verdict import verdict
from overlap_sched.scheduler.driver import Figures, Schedule
from overlap_sched.simulate.ledger import LiveRanges

COLUMNS: tuple[str, ...] = ("original", "scheduled", "change", "limit")


def page_of(schedule: Schedule, more: Mapping[str, Any] | None = None, extras: Extras = NOTHING_ELSE) -> Page:
    """Collect what the page of a schedule shows."""
    original = original_problem(schedule, extras)
    problems = (original,) if original is schedule.problem else (original, schedule.problem)
    reserved = reserved_of(schedule, original)
    told = extras.told
    rewritten = {} if told is None else rewrites_figures(told)
    ops = tuple(dict.fromkeys(node.op for problem in problems for node in problem.nodes))
    purposes = {**group_purposes(schedule.problem), **group_purposes(original)}
    called, sizes = group_names(purposes), _groups(problems)
    groups, modules = by_purpose(sizes, purposes), _modules(problems)
    before, after = LiveRanges(original), LiveRanges(schedule.problem)
    runs = [
        _run(before, 0, "original", original.original_order, schedule.original),
        _run(after, len(problems) - 1, "scheduled", schedule.order, schedule.scheduled),
    ]
    columns, summary = COLUMNS, [*summary_rows(schedule), *reserved_rows(reserved, schedule.memory_limit_bytes)]
    if extras.beside is not None:
        beside = schedule_of(schedule, original, extras.beside.order)
        also = reserved_for(original, beside.order, settings_for(original, schedule.options))
        title = printable(extras.beside.title)
        runs.append(_run(before, 0, title, beside.order, beside.scheduled))
        columns = (*columns, title)
        summary = _with_beside(summary, [*summary_rows(beside), *reserved_rows(also)], len(COLUMNS))
    return Page(
        figures={**figures(schedule), **rewritten, **(more or {}), **reserved_figures(reserved)},
        verdict=verdict(schedule, original, reserved, extras.fits),
        columns=columns,
        summary=tuple((*row, *[""] * (1 + len(columns) - len(row))) for row in summary),
        remarks=(*_remarks(schedule, extras.answer), *_earlier(extras)),
        budget_bytes=schedule.budget_bytes,
        ops=tuple(map(printable, ops)),
        modules=tuple(map(printable, modules)),
        groups=tuple(f"{called[name]} ({sizes[name]} ranks)" if sizes[name] > 1 else called[name] for name in groups),
        colours={
            "compute": COMPUTE,
            "exposed": EXPOSED,
            "rewritten": REWRITTEN,
            "orders": [BEFORE, AFTER, BESIDE],
            "groups": [PURPOSES[purposes[name]].colour for name in groups],
            "memory": [MEMORY[kind] for kind in MEMORY_KINDS],
        },
        legend=tuple(stream_legend(purposes.values(), rewritten=bool(told and told.rewrites))),
        memory_kinds=MEMORY_KINDS,
        in_flight=MEMORY_KINDS.index(IN_FLIGHT),
        causes=tuple((WORDS[c.name], c.exposed_us, c.collectives) for c in causes(schedule)),
        graphs=tuple(
            PageGraph(_nodes(problem, ops, groups, modules), _storages(ranges), marked_nodes(problem, other, extras))
            for problem, other, ranges in zip(problems, problems[::-1], (before, after), strict=False)
        ),
        runs=tuple(runs),
        collectives=collective_rows(schedule, original, extras),
        rewrites=rewrite_rows(schedule, told),
        tried=() if told is None else tuple((printable(one.what), outcome_text(one)) for one in told.trials),
        frontier=_frontier(extras, runs),
        left=_left(extras),
    )


def _left(extras: Extras) -> tuple[tuple[str, ...], ...]:
    """The heading, then a row for each rewrite left out; nothing where none was."""
    if not extras.left:
        return ()
    rows = [(printable(what), printable(worth)) for what, worth in left_rows(extras.left)]
    return ((left_title(extras.left),), *rows)


def _with_beside(
    rows: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]], columns: int
) -> list[tuple[str, ...]]:
    """Each row with one more cell: what stands in the row of that name under ``scheduled`` in the others."""
    cells = {row[0]: row[2] for row in others}
    padded = ((*row, *[""] * (1 + columns - len(row))) for row in rows)
    return [(*row, cells.get(row[0], "")) for row in padded]


def _remarks(schedule: Schedule, answer: str | None) -> tuple[str, ...]:
    """Say what the table of figures needs to be read, then the answer, or what went otherwise than wished."""
    problem = schedule.problem
    simulated = (
        f"Every figure on this page is simulated, in the {problem.memory_model} memory model: one compute stream, one "
        "stream per process group. Limits: a lower bound on any order's step; the memory budget, "
        f"{budget_words(schedule)}."
    )
    kept = "" if schedule.fell_back is None else f"The original order was kept: {printable(schedule.fell_back)}."
    lacks = (short_text(schedule),) if answer is None else (answer,)
    contended = with_contention_line(simulated, problem.contention).splitlines()
    return tuple(filter(None, (*contended, kept, *lacks)))


def _earlier(extras: Extras) -> tuple[str, ...]:
    """Say what the graph was like before it was rewritten, where the orders of the page are of what was left."""
    if extras.earlier is None:
        return ()
    was = extras.earlier.schedule.original
    return (
        f"{count(len(extras.earlier.rewrites), 'rewrite')} of collectives came before both orders of this page. The "
        f"graph as it was, before rewrites and fusion: a step of {duration(was.step_us)}, {duration(was.exposed_us)} "
        f"exposed, a peak of {size(was.peak_bytes)}.",
    )


def _groups(problems: Sequence[Problem]) -> dict[str, int]:
    """Ranks of each process group that has a collective in one of the graphs."""
    return {
        name: group.size
        for problem in problems
        for name, group in problem.groups.items()
        if any(problem.nodes[v].group == name for v in problem.collectives)
    }


def _modules(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The modules of all nodes; none where none is known."""
    return tuple(dict.fromkeys(node.module for problem in problems for node in problem.nodes if node.module))


def _nodes(problem: Problem, ops: Sequence[str], groups: Sequence[str], modules: Sequence[str]) -> PageNodes:
    nodes = problem.nodes
    op_at, group_at, module_at = ({name: at for at, name in enumerate(names)} for names in (ops, groups, modules))
    return PageNodes(
        name=tuple(printable(node.name) for node in nodes),
        kind=tuple(node.kind.value for node in nodes),
        op=tuple(op_at[node.op] for node in nodes),
        group=tuple(-1 if node.group is None else group_at[node.group] for node in nodes),
        module=tuple(module_at.get(node.module, -1) for node in nodes),
        collective=tuple(-1 if node.collective is None else node.collective for node in nodes),
    )


def _storages(ranges: LiveRanges) -> PageStorages:
    problem = ranges.problem
    shown = [live.storage for live in ranges.of(problem.original_order)]
    kinds = memory_kinds(problem)
    return PageStorages(
        bytes=tuple(problem.storages[s].bytes for s in shown),
        kind=tuple(MEMORY_KINDS.index(kinds[s]) for s in shown),
        maker=tuple(problem.maker[s] for s in shown),
    )


def _run(ranges: LiveRanges, graph: int, title: str, order: Order, measured: Figures) -> PageRun:
    problem = ranges.problem
    run, live = replay(problem, order), ranges.of(order)
    row = {span.storage: at for at, span in enumerate(live)}
    return PageRun(
        title=title,
        graph=graph,
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


def _frontier(extras: Extras, runs: Sequence[PageRun]) -> FrontierData | None:
    if extras.frontier is None:
        return None
    return FrontierData(
        points=tuple(FrontierPoint(point.peak_bytes, point.step_us, point.exposed_us, "") for point in extras.frontier),
        others=tuple(FrontierPoint(run.peak_bytes, run.step_us, run.exposed_us, run.title) for run in runs),
    )
