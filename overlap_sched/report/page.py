"""One HTML file that shows a schedule and loads nothing: data and own scripts, put into the template of page_files."""

import html
import json
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from overlap_sched import __version__
from overlap_sched.report.files import write_file
from overlap_sched.report.page_data import NOTHING_ELSE, Extras, Page, page_data
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.scheduler.driver import Schedule

SCRIPTS = ("units.js", "overview.js", "model.js", "pictures.js", "tables.js", "frontier.js", "main.js")
"""In this order, as one script."""


def write_page(
    schedule: Schedule, path: str | Path, more: Mapping[str, Any] | None = None, extras: Extras = NOTHING_ELSE
) -> None:
    """Write a schedule as one HTML file that loads nothing: it opens by double click, without a network.

    Args:
        schedule: Of a problem, or of a graph of a training run (``overlap_sched.reports()[0].report.schedule``).
        path: The file.
        more: Figures beyond those that a schedule has, as of ``plan --json``.
        extras: Rewrites, one more order beside ours, the frontier.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, page_text(page_data(schedule, more, extras), extras.command, extras.times).encode())


def page_text(page: Page, command: str = "", times: str = "") -> str:
    """The page as text; what names in it say is never taken for markup."""
    script = "\n".join(map(_read_file, SCRIPTS))
    verdict, runs = page["verdict"], page["runs"]
    places = {
        what: [f'<h3 id="{what}-title-{r}">{what}</h3>\n<div id="{what}-{r}"></div>' for r in range(len(runs))]
        for what in ("streams", "memory")
    }
    called = [f"the {run['title']} order" if r < 2 else html.escape(run["title"]) for r, run in enumerate(runs)]
    return Template(_read_file("page.html")).substitute(
        title=html.escape(f"{printable(page['figures']['name'])}: overlap_sched"),
        style=_read_file("style.css"),
        came=verdict["came"],
        badge=html.escape(verdict["badge"]),
        verdict=html.escape(verdict["sentence"]),
        columns=_heads(page["columns"]),
        summary="\n".join(map(_table_row, page["summary"])),
        remarks="\n".join(f"<p>{html.escape(line)}</p>" for line in page["remarks"]),
        streams="\n".join(places["streams"]),
        memories="\n".join(places["memory"]),
        peaks="\n".join(
            f'<button type="button" data-peak="{r}">peak of {name}</button>' for r, name in enumerate(called)
        ),
        rewrites=_rewrites_section(page),
        frontier=_frontier_section(page["frontier"]),
        data=json.dumps(page, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        script=f'"use strict";\n(() => {{\n{script}}})();',
        version=__version__,
        date=date.today().isoformat(),
        command=f" by <code>{html.escape(printable(command))}</code>" if command else "",
        times=f" Times: {html.escape(printable(times))}." if times else "",
    )


def _read_file(name: str) -> str:
    return files(__package__).joinpath("page_files", name).read_text(encoding="utf-8")


def _heads(names: Sequence[str]) -> str:
    return "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)


def _table_row(cells: Sequence[str]) -> str:
    """A line of a table, its first cell a heading."""
    first, *others = map(html.escape, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _rewrites_section(page: Page) -> str:
    """The section of rewrites and of plans tried; nothing where there are none."""
    if not page["rewrites"] and not page["tried"]:
        return ""
    rows = [
        f'<li><button type="button" data-node="{node}">{html.escape(words)}</button></li>'
        if node >= 0
        else f"<li>{html.escape(words)}</li>"
        for words, node in page["rewrites"]
    ]
    found = (
        " A click on one finds it in the streams, where what rewrites made, and what they made it of, is marked in a "
        "colour of its own." * any(node >= 0 for _, node in page["rewrites"])
    )
    without = duration(page["figures"]["step_without_rewrites_us"])
    return _section(
        "rewrites",
        "Rewrites, what each bought and costs (simulated)",
        f"<p>{count(len(rows), 'rewrite')} in the scheduled order; the best order without rewrites takes {without}."
        f"{found}</p>",
        f'<ol id="rewrites" class="list scroll" tabindex="0" aria-label="Rewrites">{"".join(rows)}</ol>' * bool(rows),
        f'<details><summary>{len(page["tried"])} plans were tried</summary><div class="scroll"><table id="tried">'
        f"<tbody>{''.join(map(_table_row, page['tried']))}</tbody></table></div></details>" * bool(page["tried"]),
    )


def _frontier_section(found: Page | None) -> str:
    """Step against peak memory; nothing where it was not computed."""
    if found is None:
        return ""
    original, rows = found["others"][0], []
    heads = _heads(("order", "peak", "", "step", "", "exposed"))
    for point in (*found["points"], *found["others"]):
        peak, step = point["peak_bytes"], point["step_us"]
        cells = [point["name"] or "on the frontier", size(peak), change(original["peak_bytes"], peak), duration(step)]
        rows.append(_table_row([*cells, change(original["step_us"], step), duration(point["exposed_us"])]))
    return _section(
        "frontier",
        "Step against peak memory (simulated)",
        "<p>The shortest step found for each peak, with rewrites; there may be better ones.</p>",
        '<ul id="frontier-legend" class="legend" aria-label="Orders"></ul>\n<div id="frontier-plot"></div>',
        '<div class="scroll" tabindex="0" role="group" aria-labelledby="frontier-title"><table id="frontier">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
    )


def _section(name: str, title: str, *parts: str) -> str:
    inside = "\n".join(filter(None, parts))
    return f'<section aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n{inside}\n</section>\n'
