"""``python -m llama_repro``: run all schedulers on two Llama backward graphs; a table and two pictures of each.

Exit status: 0; 1 where ours breaks its memory promise or a figure is worse than the committed one; 2 for wrong usage
or where something that was asked for cannot be done.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from llama_repro.capture.cache import cache_dir, make_folder
from llama_repro.errors import GoldenError
from llama_repro.harness.golden import update_golden, worse_than_golden
from llama_repro.harness.measure import GRAPHS, Measured, load_graph, measure
from llama_repro.harness.picture import draw
from llama_repro.harness.table import data_of, table_of
from overlap_sched.errors import MissingExtraError, OverlapSchedError
from overlap_sched.report.files import write_file
from overlap_sched.report.progress import progress

_WIDTH = 132
"""Columns that the tables need; a narrower terminal wraps its lines, so that no figure is cut off."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except OverlapSchedError as error:
        Console(stderr=True).print(f"llama_repro: {error}", style="red", markup=False, highlight=False)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m llama_repro", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--config",
        nargs="+",
        default=["llama1d", "llama2d"],
        choices=GRAPHS,
        metavar="GRAPH",
        help=f"which graphs: {', '.join(GRAPHS)} (default: llama1d llama2d)",
    )
    parser.add_argument("--no-torch", action="store_true", help="leave out torch's own pass")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures as JSON, a list of graphs")
    parser.add_argument(
        "--plots", metavar="DIR", type=Path, help="where to put the pictures (default: pictures/ in the cache)"
    )
    parser.add_argument("--update-golden", action="store_true", help="make this run's figures the committed ones")
    parser.add_argument("--refresh", action="store_true", help="capture again, whatever the cache holds")
    return parser


def _run(options: argparse.Namespace) -> int:
    console = Console(width=max(Console().width, _WIDTH), highlight=False)
    failures: list[str] = []
    written = []
    for graph in options.config:
        with progress() as step:
            stored = load_graph(graph, refresh=options.refresh, progress=step)
            measured = measure(graph, stored, with_torch=not options.no_torch, progress=step)
            step("drawing")
            pictures = _draw(measured, options.plots)
        console.print(table_of(measured))
        for line in (*measured.remarks, pictures):
            console.print(line, markup=False, soft_wrap=True)
        failures += [f"{entry.key}: {entry.broken}" for entry in measured.entries if entry.broken]
        if options.update_golden:
            update_golden(measured)
            console.print("golden.json updated")
        else:
            failures += _compare(measured, console)
        console.print()
        written.append(data_of(measured))
    if options.json:
        write_file(options.json, json.dumps(written, indent=1).encode())
    for line in failures:
        console.print(f"FAILED {line}", style="red", markup=False)
    return 1 if failures else 0


def _compare(measured: Measured, console: Console) -> list[str]:
    try:
        worse = worse_than_golden(measured)
    except GoldenError as error:
        console.print(f"not compared: {error}", markup=False)
        return []
    if not worse:
        console.print("no figure is worse than the committed ones (golden.json)")
    return worse


def _draw(measured: Measured, folder: Path | None) -> str:
    """Draw; says where. A missing matplotlib is an error only for who asked."""
    target = folder or cache_dir() / "llama_repro" / "pictures"
    make_folder(target, "name another with --plots")
    try:
        return f"pictures: {', '.join(map(str, draw(measured, target)))}"
    except MissingExtraError as error:
        if folder is not None:
            raise
        return f"no pictures: {error}"


if __name__ == "__main__":
    sys.exit(main())
