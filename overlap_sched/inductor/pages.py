"""An HTML page for each graph of a training run: what ``overlap_sched.reports()`` tells, to look at."""

from pathlib import Path

from overlap_sched.analysis.frontier import frontier
from overlap_sched.inductor.reporting import GraphReport, reports
from overlap_sched.report.files import make_folder
from overlap_sched.report.html.beside import Extras
from overlap_sched.report.html.page import check_html, write_page


def write_pages(folder: str | Path, budgets: int = 0) -> tuple[Path, ...]:
    """Write ``graph0.html`` and so on: one page for each graph of :func:`reports` that was scheduled, oldest first.

    Args:
        folder: Where; it is made. Of several ranks, which all report the same graphs, let one write.
        budgets: Of the frontier of each graph, step against peak memory; 0: none is computed.

    Returns:
        The files.

    Raises:
        MissingExtraError: bokeh is not installed.
        OutputError: A file cannot be written.
    """
    check_html()
    make_folder(folder)
    scheduled = [one for one in reports() if one.report.schedule is not None]
    return tuple(_written(one, Path(folder) / f"graph{number}.html", budgets) for number, one in enumerate(scheduled))


def _written(one: GraphReport, path: Path, budgets: int) -> Path:
    plan, made = one.report.schedule, one.report.made
    assert plan is not None
    found = frontier(plan.problem, budgets=budgets) if budgets else None
    own = made is not None and made.schedule is plan
    times = f"predicted for {one.priced_for}" if one.priced_for else ""
    extras = Extras(made if own else None, frontier=found, earlier=None if own else made, times=times)
    write_page(plan, path, extras=extras)
    return path
