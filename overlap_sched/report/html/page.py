"""The page itself: data and bokeh's script, put into the template that lies beside this module."""

import html
import json
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from overlap_sched import __version__
from overlap_sched.errors import MissingExtraError
from overlap_sched.report.files import write_file
from overlap_sched.report.html.beside import NOTHING_ELSE, Extras
from overlap_sched.report.html.collect import page_of
from overlap_sched.report.html.data import Page
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.scheduler.driver import Schedule

SCRIPTS = ("units.js", "overview.js", "model.js", "pictures.js", "tables.js", "frontier.js", "main.js")
"""In this order, as one script."""
_FOLDER = "page_files"


class Library(NamedTuple):
    """What draws: its script, to be copied into the page, and its version."""

    script: str
    version: str


def check_html() -> None:
    """Find out before the work is done that the page could not be made."""
    try:
        import bokeh.resources  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "the HTML report needs bokeh, which is not installed: pip install 'overlap_sched[html]'"
        ) from None


def write_page(
    schedule: Schedule, path: str | Path, more: Mapping[str, Any] | None = None, extras: Extras = NOTHING_ELSE
) -> None:
    """Write a schedule as one HTML file that loads nothing: it opens by double click, without a network.

    Args:
        schedule: Of a problem, or of a graph of a training run (``overlap_sched.reports()[0].report.schedule``).
        path: The file.
        more: Figures beyond those that a schedule tells, as of ``plan --json``.
        extras: Rewrites, one more order beside ours, the frontier.

    Raises:
        MissingExtraError: bokeh is not installed.
        OutputError: The file cannot be written.
    """
    check_html()
    text = page_text(page_of(schedule, more, extras), bokeh_library(), extras.command, extras.times)
    write_file(path, text.encode())


def bokeh_library() -> Library:
    """Return what the page needs of the bokeh installed: drawing, without widgets, tables, mathematics and WebGL."""
    from bokeh import __version__
    from bokeh.resources import Resources

    scripts = Resources(mode="inline", components=["bokeh", "bokeh-api"], minified=True).js_raw
    return Library("\n".join(scripts), __version__)


def page_text(page: Page, library: Library, command: str = "", times: str = "") -> str:
    """The page as text; what names in it say is never taken for markup."""
    script = "\n".join(_file(name) for name in SCRIPTS)
    return Template(_file("page.html")).substitute(
        title=html.escape(f"{printable(page.figures['name'])}: overlap_sched"),
        style=_file("style.css"),
        came=page.verdict.came,
        badge=html.escape(page.verdict.badge),
        verdict=html.escape(page.verdict.sentence),
        columns="".join(f'<th scope="col">{html.escape(name)}</th>' for name in page.columns),
        summary="\n".join(map(_table_row, page.summary)),
        remarks="\n".join(f"<p>{html.escape(line)}</p>" for line in page.remarks),
        streams="\n".join(_picture("streams", r) for r in range(len(page.runs))),
        memories="\n".join(_picture("memory", r) for r in range(len(page.runs))),
        peaks="\n".join(
            f'<button type="button" data-peak="{r}">peak of {_the(run.title)}</button>'
            for r, run in enumerate(page.runs)
        ),
        rewrites=_rewrites_section(page),
        frontier=_frontier_section(page),
        data=json.dumps(page.to_json(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        library=library.script,
        script=f'"use strict";\n(() => {{\n{script}}})();',
        library_version=html.escape(library.version),
        version=__version__,
        date=date.today().isoformat(),
        command=f" by <code>{html.escape(printable(command))}</code>" if command else "",
        times=f" Times: {html.escape(printable(times))}." if times else "",
    )


def _picture(what: str, r: int) -> str:
    return f'<h3 id="{what}-title-{r}">{what}</h3>\n<div id="{what}-{r}"></div>'


def _the(title: str) -> str:
    return f"the {title} order" if title in ("original", "scheduled") else html.escape(title)


def _file(name: str) -> str:
    return files(__package__).joinpath(_FOLDER, name).read_text(encoding="utf-8")


def _table_row(cells: tuple[str, ...]) -> str:
    """A line of a table, its first cell a heading."""
    first, *others = map(html.escape, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _rewrites_section(page: Page) -> str:
    """The section of what was rewritten and tried; nothing where nothing was."""
    if not page.rewrites and not page.tried:
        return ""
    rows = [
        f'<li><button type="button" data-node="{one.node}">{html.escape(one.words)}</button></li>'
        if one.node >= 0
        else f"<li>{html.escape(one.words)}</li>"
        for one in page.rewrites
    ]
    step = f"; the best order without rewrites takes {duration(page.figures['step_without_rewrites_us'])}"
    found = (
        " A click on one finds it in the streams, where what rewrites made, and what they made it of, is marked "
        "in a colour of its own."
        if any(one.node >= 0 for one in page.rewrites)
        else ""
    )
    tried = "".join(_table_row(one) for one in page.tried)
    return _section(
        "rewrites",
        "Rewrites, what each bought and costs (simulated)",
        f"<p>{count(len(page.rewrites), 'rewrite')} in the scheduled order{step}.{found}</p>",
        f'<ol id="rewrites" class="list scroll" tabindex="0" aria-label="Rewrites">{"".join(rows)}</ol>'
        if rows
        else "",
        f'<details><summary>{len(page.tried)} plans were tried</summary><div class="scroll"><table id="tried">'
        f"<tbody>{tried}</tbody></table></div></details>"
        if tried
        else "",
        _left_out(page.left),
    )


def _left_out(left: tuple[tuple[str, ...], ...]) -> str:
    """The step without each rewrite; nothing where none was left out."""
    if not left:
        return ""
    (title,), *rows = left
    return (
        f'<details><summary>{html.escape(title)}</summary><div class="scroll"><table id="left-out">'
        f"<tbody>{''.join(map(_table_row, rows))}</tbody></table></div></details>"
    )


def _frontier_section(page: Page) -> str:
    """The section of step against peak memory; nothing where it was not computed."""
    found = page.frontier
    if found is None:
        return ""
    original = found.others[0]
    head = ("order", "peak", "", "step", "", "exposed")
    rows = [
        _table_row(
            (
                point.name or "on the frontier",
                size(point.peak_bytes),
                change(original.peak_bytes, point.peak_bytes),
                duration(point.step_us),
                change(original.step_us, point.step_us),
                duration(point.exposed_us),
            )
        )
        for point in (*found.points, *found.others)
    ]
    return _section(
        "frontier",
        "Step against peak memory (simulated)",
        "<p>The shortest step found for each peak, with rewrites; there may be better ones.</p>",
        '<div id="frontier-plot"></div>',
        '<div class="scroll" tabindex="0" role="group" aria-labelledby="frontier-title">'
        '<table id="frontier"><thead><tr>'
        + "".join(f'<th scope="col">{name}</th>' for name in head)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
    )


def _section(name: str, title: str, *parts: str) -> str:
    inside = "\n".join(filter(None, parts))
    return f'<section aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n{inside}\n</section>\n'
