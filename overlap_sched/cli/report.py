"""``overlap-sched report``: one HTML page of a schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from overlap_sched.cli.flags import Flag
from overlap_sched.cli.plan import Rewriting, fell_back, left_of, prices_of, scheduled, times_of
from overlap_sched.judge.validate import read_order
<<<<<<< HEAD
from overlap_sched.report.html.beside import ExtraOrder, Extras
from overlap_sched.report.html.page import write_page


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Rewriting):
    """Write a page."""

    html: Annotated[str, Flag(file="out")]
    """OUT.html: write one HTML file that loads nothing: figures, streams and memory in time, before and after, and why
    each collective is where it is (needs the extra 'html')"""
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
    left = () if made is None else left_of(command, loaded, made, tell)
    times = times_of(command, loaded, rewrites=made is not None)
    extras = Extras(made, beside, left=left, command=command.given, times=times)
    write_page(result, command.html, {"prices": prices_of(command, loaded)}, extras)
    return (f"{command.html}: written; open it in a browser",), int(fell_back(result, made))
=======
from overlap_sched.report.page import write_page
from overlap_sched.report.page_data import ExtraOrder, Extras
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.transform.plan import Plan


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add(
        "--html",
        metavar="OUT.html",
        required=True,
        help="write one HTML file that loads nothing: figures, streams and memory in time, before and after, and why "
        "each collective is where it is",
    )
    add_rewrites(parser)
    add(
        "--beside",
        metavar="ORDER.json",
        help="also another order of the graph, a JSON list of node names: torch's (`scripts/torch_order.py`), or what "
        "`plan --out` wrote",
    )
    parser.set_defaults(out=None)


def check(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before the input is read."""
    check_left_out(options)


def answer(
    options: argparse.Namespace,
    loaded: Loaded,
    result: Schedule,
    tell: Callable[[str], None],
    made: Plan | None = None,
) -> str:
    """Write the page; what to print."""
    original = result.problem if made is None else made.without.problem
    beside = (
        None if options.beside is None else ExtraOrder(_title(options.beside), read_order(options.beside, original))
    )
    tell(f"writing {options.html}")
    left = () if made is None else left_of(options, loaded, made, tell)
    times = times_of(options, loaded, rewrites=made is not None)
    extras = Extras(made, beside, left=left, command=options.as_given, times=times)
    write_page(result, options.html, {"prices": prices_of(options, loaded)}, extras)
    return f"{options.html}: written; open it in a browser"


def _title(path: str) -> str:
    """Return the name of an order: its file's name, without the ending."""
    return Path(path).name.removesuffix(".json")
>>>>>>> main
