"""``overlap-sched report``: one HTML page of a schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import to_builtins

from overlap_sched.cli.flags import Flag
from overlap_sched.cli.plan import Rewriting, fell_back, prices_of, scheduled, times_of
from overlap_sched.judge.validate import read_order
from overlap_sched.report.page import write_page
from overlap_sched.report.page_data import ExtraOrder, Extras


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Rewriting):
    """Write a page."""

    html: Annotated[str, Flag(file="out")]
    """OUT.html: write one HTML file that loads nothing: figures, streams and memory in time, before and after, and why
    each collective is where it is"""
    beside: Annotated[str | None, Flag(file="in")] = None
    """ORDER.json: also another order of the graph, a JSON list of node names: torch's (`scripts/torch_order.py`), or
    what `plan --out` wrote"""
    given: str = ""


def run(command: ReportCommand, tell: Callable[[str], None]) -> tuple[tuple[str], int]:
    """Schedule, write the page; what to print, and the exit code."""
    loaded, result, made = scheduled(command, tell)
    original, beside = result.problem if made is None else made.without.problem, None
    if command.beside is not None:
        beside = ExtraOrder(Path(command.beside).name.removesuffix(".json"), read_order(command.beside, original))
    tell(f"writing {command.html}")
    times = times_of(command, loaded, rewrites=made is not None)
    extras = Extras(made, beside, command=command.given, times=times)
    write_page(result, command.html, {"prices": to_builtins(prices_of(command, loaded))}, extras)
    return (f"{command.html}: written; open it in a browser",), int(fell_back(result, made))
