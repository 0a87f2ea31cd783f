"""``overlap-sched report``: its options, and the file that it writes."""

import argparse
from collections.abc import Callable

from overlap_sched.cli.plan import prices_of
from overlap_sched.cli.source import Loaded
from overlap_sched.scheduler.result import Schedule


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--html",
        metavar="OUT.html",
        required=True,
        help="write one HTML file that loads nothing: figures, streams and memory in time, before and after, and why "
        "each collective is where it is (needs the extra 'html')",
    )


def answer(options: argparse.Namespace, loaded: Loaded, result: Schedule, tell: Callable[[str], None]) -> str:
    """Write the page; what to print.

    Raises:
        MissingExtraError: bokeh is not installed.
        OutputError: The file cannot be written.
    """
    from overlap_sched.report.html.page import write_page

    tell(f"writing {options.html}")
    write_page(result, options.html, {"prices": prices_of(options, loaded)})
    return f"{options.html}: written; open it in a browser"
