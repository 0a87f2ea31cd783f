"""``python -m llama_repro``: run all schedulers on two Llama backward graphs; a table and two pictures of each.

Exit status: 0; 1 where ours breaks its memory promise or a figure is worse than the committed one; 2 for wrong usage
or where something that was asked for cannot be done.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from llama_repro.capture.cache import cache_dir, make_folder
from llama_repro.errors import GoldenError
from llama_repro.harness.console import guarded, verdict, wide_console
from llama_repro.harness.golden import update_golden, worse_than_golden
from llama_repro.harness.measure import GRAPHS, Measured, load_graph, measure
from llama_repro.harness.picture import draw
from llama_repro.harness.record import provenance, write_record
from llama_repro.harness.table import data_of, table_of
from overlap_sched.errors import MissingExtraError
from overlap_sched.report.terminal import progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("llama_repro", lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m llama_repro",
        description="Run all schedulers on Llama backward graphs; print a table of each, and draw two pictures.",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        default=["llama1d", "llama2d"],
        choices=GRAPHS,
        metavar="GRAPH",
        help=f"which graphs: {', '.join(GRAPHS)} (default: llama1d llama2d)",
    )
    parser.add_argument("--no-torch", action="store_true", help="leave out torch's own pass")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--plots", metavar="DIR", type=Path, help="where to put the pictures (default: pictures/ in the cache)"
    )
    parser.add_argument("--update-golden", action="store_true", help="make this run's figures the committed ones")
    parser.add_argument("--refresh", action="store_true", help="capture again, whatever the cache holds")
    return parser


def _run(options: argparse.Namespace) -> int:
    console = wide_console()
    failures: list[str] = []
    written = []
    for graph in options.config:
        with progress() as step:
            stored = load_graph(graph, refresh=options.refresh, progress=step)
            measured = measure(graph, stored, with_torch=not options.no_torch, progress=step)
            step("drawing")
            pictures = _draw(measured, options.plots)
        console.print(table_of(measured))
        verdict(console, (*measured.remarks, pictures), ())
        failures += [f"{entry.key}: {entry.broken}" for entry in measured.entries if entry.broken]
        if options.update_golden:
            update_golden(measured)
            console.print("golden.json updated")
        else:
            failures += _compare(measured, console)
        console.print()
        written.append(data_of(measured))
    if options.json:
        write_record(
            options.json, {**provenance(" ".join(["python -m llama_repro", *sys.argv[1:]])), "graphs": written}
        )
    return verdict(console, (), failures)


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
