"""``overlap-sched plan``: its options, the files that it writes, and what it prints."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import Loaded
from overlap_sched.report import figures, summary, write_trace
from overlap_sched.report.files import write_file
from overlap_sched.report.reserved_text import reserved_changes, reserved_figures, reserved_rows
from overlap_sched.scheduler.result import Schedule


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add("--out", metavar="ORDER.json", help="write the order found as a JSON list of node names")
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema plan`)")
    add("--plot", metavar="OUT.png", help="draw memory and streams, before and after (.png, .svg, .pdf)")
    add("--trace", metavar="OUT.json", help="write a trace for ui.perfetto.dev or chrome://tracing")


def answer(
    options: argparse.Namespace, loaded: Loaded, result: Schedule, tell: Callable[[str], None]
) -> str | tuple[RenderableType]:
    """Write the files asked for; what to print: JSON, or a table and perhaps a line."""
    if options.out:
        tell(f"writing {options.out}")
        names = result.problem.names(result.order)
        write_file(options.out, (json.dumps(names, separators=(",", ":")) + "\n").encode())
    if options.plot:
        from overlap_sched.report.plot import plot_schedule

        tell(f"drawing {options.plot}")
        plot_schedule(result, options.plot)
    if options.trace:
        tell(f"writing {options.trace}")
        write_trace(result, options.trace)
    tell("replaying the caching allocator")
    reserved = reserved_changes(result)
    tell("computing the lower bound")
    if options.json:
        more = {"prices": _prices(options, loaded), "reserved": reserved_figures(reserved)}
        return as_json("plan", {**figures(result), **more})
    kept = () if result.fell_back is None else (f"The original order was kept: {result.fell_back}",)
    return (summary(result, reserved_rows(reserved)), *kept)


def _prices(options: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    """Where the times come from."""
    of = {"from": "problem file"} if loaded.priced_for is None else {"from": "dump", **asdict(loaded.priced_for)}
    return {**of, "comm_scale": options.comm_scale, "traces": len(options.profile)}
