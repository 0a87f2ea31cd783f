"""One HTML file that shows a schedule and loads nothing: data and own scripts, put into the template of page_files.

The data are all that the scripts show (page_files/model.js): they add nothing. Times are microseconds, rounded to
nanoseconds where they are drawn; the figures are those of ``plan --json``, unrounded. Columns of nodes are indexed by
node id, columns of storages by row (storages that are ever live); operators, groups and modules count in lists of their
own (-1: none, not known). A storage is live from position ``first`` to ``last`` of an order, both included
(:mod:`overlap_sched.judge.validate`); ``flights`` are (row, first, last) where a collective holds it.
"""

import html
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType, to_builtins

from overlap_sched import __version__
from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import measure
from overlap_sched.options import Options
from overlap_sched.peak_memory.peak import KINDS
from overlap_sched.problem import Order, Problem
from overlap_sched.report import colours
from overlap_sched.report.answers import PriceSource, plan_answer
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import IN_FLIGHT, flights, memory_kinds
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.report.words import rewrites
from overlap_sched.report.words import schedule as words
from overlap_sched.report.words.graph import by_purpose, group_names, group_purposes
from overlap_sched.scheduler.driver import Figures, Schedule, figures_of, schedule_of
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.task import Candidate, Task
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Bucket, Stream

FIGURES = ("peak_bytes", "step_us", "exposed_us")
Page = dict[str, Any]


class Extras(NamedTuple):
    """What a page shows beyond a schedule; ``None``: nothing of the kind.

    Attributes:
        made: The plan that the schedule is of.
        beside: Another order of the graph as it was (torch's, say), and what it is called.
        fit: The search that has found the plan.
        command: That made the page; ``""``: a program did.
        prices: Where its times come from, where that is known.
    """

    made: Plan | None = None
    beside: tuple[str, Order] | None = None
    fit: Fit | None = None
    command: str = ""
    prices: PriceSource | UnsetType = UNSET


NOTHING_ELSE = Extras()


def extras_of_fit(found: Fit) -> tuple[Schedule, Extras]:
    """Return the schedule of a fit's page, and what else is on it; the budget is the limit, or the peak found.

    Why the search has launched a collective where it did is not known: what is shown is what binds it there.
    """
    base_bytes = found.original.peak_bytes
    limit_bytes = found.best.peak_bytes if found.limit_bytes is None else found.limit_bytes
    original = schedule_of(found.original.problem, found.original.order).scheduled

    def shown(point: FitPoint, headroom_bytes: int) -> Schedule:
        made = schedule_of(point.problem, point.order, Options(memory_model=point.problem.memory_model))
        order = Candidate(made.order, made.scheduled.step_us, made.scheduled.peak_bytes)
        task = Task(point.problem, made.options, base_bytes + headroom_bytes)
        why = decisions(point.problem, replay(point.problem, made.order), order, task)
        return replace(made, original=original, headroom_bytes=headroom_bytes, base_bytes=base_bytes, decisions=why)

    best = shown(found.best, limit_bytes - base_bytes)
    records = tuple(record for record, _ in rewrites.costs(found))
    return best, Extras(Plan(found.best.rewrites, best, shown(found.without, 0), records), fit=found)


def page_data(schedule: Schedule, extras: Extras = NOTHING_ELSE) -> Page:
    """Collect what the page of a schedule shows."""
    made, found = extras.made, extras.fit
    fits = None if found is None or found.limit_bytes is None else found.fits
    answer = [] if found is None else [rewrites.answer_line(found)]
    original = schedule.problem if made is None else made.without.problem
    problems = (original,) if original is schedule.problem else (original, schedule.problem)
    reserved = words.reserved_of(schedule, original)
    ops = tuple(dict.fromkeys(node.op for problem in problems for node in problem.nodes))
    modules = tuple(dict.fromkeys(node.module for problem in problems for node in problem.nodes if node.module))
    purposes = {**group_purposes(schedule.problem), **group_purposes(original)}
    called = group_names(purposes)
    sizes = {name: of.groups[name].size for of in problems for name in group_purposes(of)}
    groups = by_purpose(sizes, purposes)
    ranges = [LiveRanges(problem) for problem in problems]
    runs = [
        _run(ranges[0], 0, "original", original.original_order, schedule.original),
        _run(ranges[-1], len(problems) - 1, "scheduled", schedule.order, schedule.scheduled),
    ]
    columns = ["original", "scheduled", "change", "limit"]
    gain = words.gain_of(schedule, original)
    summary = [[*row, *[""] * (5 - len(row))] for row in words.summary_rows(schedule, reserved, gain)]
    if extras.beside is not None:
        title, order = printable(extras.beside[0]), extras.beside[1]
        measured = figures_of(original, measure(original, order))
        beside = replace(schedule, problem=original, order=order, scheduled=measured, decisions=())
        runs.append(_run(ranges[0], 0, title, order, measured))
        rows = words.summary_rows(beside, words.reserved_of(beside), words.gain_of(beside))
        cells = {row[0]: row[2] for row in rows}
        columns.append(title)
        for row in summary:
            row.append(cells.get(row[0], ""))
    return {
        "figures": to_builtins(plan_answer(schedule, made, reserved, extras.prices, gain)),
        "verdict": words.verdict(schedule, original, reserved, fits),
        "columns": columns,
        "summary": summary,
        "remarks": [*words.conditions(schedule).splitlines(), *words.remarks(schedule), *answer],
        "budget_bytes": schedule.budget_bytes,
        "ops": [printable(op) for op in ops],
        "modules": [printable(module) for module in modules],
        "groups": [f"{called[name]} ({sizes[name]} ranks)" if sizes[name] > 1 else called[name] for name in groups],
        "colours": {
            "compute": colours.COMPUTE,
            "exposed": colours.EXPOSED,
            "rewritten": colours.REWRITTEN,
            "orders": [colours.BEFORE, colours.AFTER, colours.BESIDE],
            "groups": [colours.PURPOSES[purposes[name]].colour for name in groups],
            "memory": [colours.MEMORY[kind] for kind in KINDS],
        },
        "legend": colours.stream_legend(purposes.values(), rewritten=bool(made and made.rewrites)),
        "memory_kinds": KINDS,
        "in_flight": KINDS.index(IN_FLIGHT),
        "causes": [(words.WORDS[cause.name], cause.exposed_us, cause.collectives) for cause in words.causes(schedule)],
        "graphs": [
            {**_graph(of, ops, groups, modules), "marked": _marked(of.problem, other, made)}
            for of, other in zip(ranges, problems[::-1], strict=True)
        ],
        "runs": runs,
        "collectives": _collectives(schedule, original, made),
        "rewrites": _rewrites(schedule, made),
        "tried": [] if made is None else [(printable(one.what), rewrites.outcome_text(one)) for one in made.trials],
        "frontier": [{key: getattr(point, key) for key in FIGURES} for point in (found.points if found else ())],
    }


def _graph(ranges: LiveRanges, ops: Sequence[str], groups: Sequence[str], modules: Sequence[str]) -> Page:
    problem, nodes = ranges.problem, ranges.problem.nodes
    op_at, group_at, module_at = ({name: at for at, name in enumerate(names)} for names in (ops, groups, modules))
    shown, kinds = [live.storage for live in ranges.of(problem.original_order)], memory_kinds(problem)
    return {
        "nodes": {
            "name": [printable(node.name) for node in nodes],
            "kind": [node.kind.value for node in nodes],
            "op": [op_at[node.op] for node in nodes],
            "group": [-1 if node.group is None else group_at[node.group] for node in nodes],
            "module": [module_at.get(node.module, -1) for node in nodes],
            "collective": [-1 if node.collective is None else node.collective for node in nodes],
        },
        "storages": {
            "bytes": [problem.storages[s].bytes for s in shown],
            "kind": [KINDS.index(kinds[s]) for s in shown],
            "maker": [problem.maker[s] for s in shown],
        },
    }


def _run(ranges: LiveRanges, graph: int, title: str, order: Order, measured: Figures) -> Page:
    """Return one order in time; ``graph``: its number among the graphs."""
    problem = ranges.problem
    run, live = replay(problem, order), ranges.of(order)
    row = {span.storage: at for at, span in enumerate(live)}
    return {
        "title": title,
        "graph": graph,
        **{key: getattr(measured, key) for key in (*FIGURES, "peak_at")},
        "order": list(order),
        "at_us": [round(run.at_us[v], 3) for v in order],
        "start_us": [round(us, 3) for us in run.start_us],
        "finish_us": [round(us, 3) for us in run.finish_us],
        "first": [span.first for span in live],
        "last": [span.last for span in live],
        "flights": [(row[s], *flight) for s, found in flights(problem, order).items() for flight in found],
    }


def _collectives(schedule: Schedule, original: Problem, made: Plan | None) -> list[Page]:
    """The rows of the table, the most exposed first; ``before``: ids in the original graph of what each stands for."""
    problem = schedule.problem
    before, causes = replay(original, original.original_order), words.stalls_by_cause(schedule)
    number = {cause.name: at for at, cause in enumerate(words.causes(schedule))}
    ids = {original.nodes[v].name: v for v in original.collectives}
    rewrites = () if made is None else made.rewrites
    members = {one.name: one.members for one in rewrites if isinstance(one, Bucket)}
    rows = []
    for d in words.most_exposed(schedule):
        node = problem.nodes[d.collective]
        stood_for = [ids[name] for name in members.get(node.name, (node.name,)) if name in ids]
        launched = f"launched there because: {words.WHY[d.reason]}"
        rows.append(
            {
                "node": d.collective,
                "before": stood_for,
                "bytes": node.bytes,
                "time_us": node.time_us,
                "earlier": d.original_position - d.position,
                "original_exposed_us": sum(before.stall_us[w] for c in stood_for for w in original.waits.get(c, ())),
                "exposed_us": d.exposed_us,
                "hidden_us": d.hidden_us,
                "causes": [(number[name], us) for name, us in causes[d.collective].items() if us > 0],
                "why": f"blocked by {words.blocked_by(problem, d)}",
                "more": "; ".join(filter(None, [launched, words.refusal(problem, d)])),
            }
        )
    return rows


def _rewrites(schedule: Schedule, made: Plan | None) -> list[tuple[str, int]]:
    """In words, and the collective that is launched for each (-1: none), in the order in which they are done."""
    ids, found = {schedule.problem.nodes[v].name: v for v in schedule.problem.collectives}, []
    for one in () if made is None else made.records:
        names = (getattr(one.rewrite, part, None) for part in ("name", "first", "collective"))
        launch = next(filter(None, names), "")
        found.append((printable(rewrites.record_text(one)), ids.get(launch, -1)))
    return found


def _marked(problem: Problem, other: Problem, made: Plan | None) -> list[int]:
    """Nodes that are not in the other graph, and collectives that went to another communicator."""
    if made is None:
        return []
    moved = {one.collective for one in made.rewrites if isinstance(one, Stream)}
    marked = {node.name for node in problem.nodes} - {node.name for node in other.nodes} | moved
    return [v for v, node in enumerate(problem.nodes) if node.name in marked]


_PLACE = '<h3 id="{what}-title-{r}">{what}</h3>\n<div id="{what}-{r}"></div>'
_BUTTON = '<button type="button" data-{}="{}">{}</button>'
SCRIPTS = ("units.js", "overview.js", "model.js", "pictures.js", "tables.js", "frontier.js", "main.js")
"""In this order, as one script."""


def write_page(schedule: Schedule, path: str | Path, extras: Extras = NOTHING_ELSE) -> None:
    """Write a schedule as one HTML file that loads nothing: it opens by double click, without a network.

    Args:
        schedule: Of a problem, or of a graph of a training run (``overlap_sched.reports()[0].report.schedule``).
        path: The file.
        extras: Rewrites, one more order beside ours, the frontier.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, page_text(page_data(schedule, extras), extras.command).encode())


def page_text(page: Page, command: str = "") -> str:
    """Return the page as text; what names in it say is never taken for markup."""
    script = "\n".join(map(_read_file, SCRIPTS))
    (came, badge, verdict), runs, prices = page["verdict"], page["runs"], page["figures"].get("prices", {})
    on = prices.get("cluster") or prices.get("device")
    times = f"predicted for {on}" if on else "of the problem file"
    times += f", {count(prices['traces'], 'trace')} of a profiler where they have them" if prices.get("traces") else ""
    without = page["figures"].get("step_without_rewrites_us")
    points, drawn = [*page["frontier"], *runs] if page["frontier"] else [], range(len(runs))
    return Template(_read_file("page.html")).substitute(
        title=html.escape(f"{printable(page['figures']['name'])}: overlap_sched"),
        style=_read_file("style.css"),
        came=came,
        badge=html.escape(badge),
        verdict=html.escape(verdict),
        columns="".join(f'<th scope="col">{html.escape(name)}</th>' for name in page["columns"]),
        summary="\n".join(map(_table_row, page["summary"])),
        remarks="\n".join(f"<p>{html.escape(line)}</p>" for line in page["remarks"]),
        streams="\n".join(_PLACE.format(what="streams", r=r) for r in drawn),
        memories="\n".join(_PLACE.format(what="memory", r=r) for r in drawn),
        peaks="\n".join(_BUTTON.format("peak", r, f"peak of {html.escape(runs[r]['title'])}") for r in drawn),
        no_rewrites="" if page["rewrites"] or page["tried"] else " hidden",
        without="" if without is None else f"The best order without rewrites takes {duration(without)}.",
        rewrites="".join(
            f"<li>{_BUTTON.format('node', node, words) if node >= 0 else words}</li>"
            for words, node in ((html.escape(said), node) for said, node in page["rewrites"])
        ),
        tried="".join(map(_table_row, page["tried"])),
        no_frontier="" if points else " hidden",
        frontier="\n".join(_table_row(_frontier_cells(of, page["figures"])) for of in points),
        data=json.dumps(page, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        script=f'"use strict";\n(() => {{\n{script}}})();',
        version=__version__,
        date=date.today().isoformat(),
        command=f" by <code>{html.escape(printable(command))}</code>" if command else "",
        times=f" Times: {html.escape(printable(times))}." if prices else "",
    )


def _frontier_cells(of: Page, figures: Page) -> list[str]:
    peak, step = of["peak_bytes"], of["step_us"]
    less, longer = change(figures["original_peak_bytes"], peak), change(figures["original_step_us"], step)
    return [of.get("title", "on the frontier"), size(peak), less, duration(step), longer, duration(of["exposed_us"])]


def _read_file(name: str) -> str:
    return files(__package__).joinpath("page_files", name).read_text(encoding="utf-8")


def _table_row(cells: Sequence[str]) -> str:
    """A line of a table, its first cell a heading."""
    first, *others = map(html.escape, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
