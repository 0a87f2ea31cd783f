"""The page itself: data and bokeh's script, put into the template that lies beside this module."""

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from overlap_sched.errors import MissingExtraError
from overlap_sched.report.files import write_file
from overlap_sched.report.html.beside import NOTHING_ELSE, Extras
from overlap_sched.report.html.collect import page_of
from overlap_sched.report.html.data import Page
from overlap_sched.report.html.sections import frontier_section, rewrites_section, table_row
from overlap_sched.report.units import printable
from overlap_sched.scheduler.result import Schedule

SCRIPTS = ("units.js", "overview.js", "model.js", "pictures.js", "tables.js", "frontier.js", "main.js")
"""In this order, as one script."""
_FOLDER = "page_files"


class Library(NamedTuple):
    """What draws: its script, to be copied into the page, and its version."""

    script: str
    version: str


def check_html() -> None:
    """Find out before the work is done that the page could not be made.

    Raises:
        MissingExtraError: bokeh is not installed.
    """
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
    write_file(path, page_text(page_of(schedule, more, extras), bokeh_library()).encode())


def bokeh_library() -> Library:
    """Return what the page needs of the bokeh installed: drawing, without widgets, tables, mathematics and WebGL."""
    from bokeh import __version__
    from bokeh.resources import Resources

    scripts = Resources(mode="inline", components=["bokeh", "bokeh-api"], minified=True).js_raw
    return Library("\n".join(scripts), __version__)


def page_text(page: Page, library: Library) -> str:
    """The page as text; what names in it say is never taken for markup."""
    script = "\n".join(_file(name) for name in SCRIPTS)
    return Template(_file("page.html")).substitute(
        title=html.escape(f"{printable(page.figures['name'])}: overlap_sched"),
        style=_file("style.css"),
        columns="".join(f'<th scope="col">{html.escape(name)}</th>' for name in page.columns),
        summary="\n".join(map(table_row, page.summary)),
        remarks="\n".join(f"<p>{html.escape(line)}</p>" for line in page.remarks),
        streams="\n".join(_picture("streams", r) for r in range(len(page.runs))),
        memories="\n".join(_picture("memory", r) for r in range(len(page.runs))),
        peaks="\n".join(
            f'<button type="button" data-peak="{r}">peak of {_the(run.title)}</button>'
            for r, run in enumerate(page.runs)
        ),
        rewrites=rewrites_section(page),
        frontier=frontier_section(page),
        data=json.dumps(page.to_json(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        library=library.script,
        script=f'"use strict";\n(() => {{\n{script}}})();',
        library_version=html.escape(library.version),
    )


def _picture(what: str, r: int) -> str:
    return f'<h3 id="{what}-title-{r}">{what}</h3>\n<div id="{what}-{r}"></div>'


def _the(title: str) -> str:
    return f"the {title} order" if title in ("original", "scheduled") else html.escape(title)


def _file(name: str) -> str:
    return files(__package__).joinpath(_FOLDER, name).read_text(encoding="utf-8")
