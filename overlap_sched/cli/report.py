"""``overlap-sched report``: its options, and the file that it writes."""

import argparse
from collections.abc import Callable
from pathlib import Path

from overlap_sched.cli.plan import add_rewrites, check_left_out, left_of, prices_of, times_of
from overlap_sched.cli.source import Loaded
from overlap_sched.judge.validate import read_order
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
