"""``python -m llama_repro``: capture a Llama's backward graph, run all schedulers on it, print one table.

Exit status: 0; 1 where ours breaks its memory promise or a figure is worse than the committed one; 2 for wrong usage
or where something that was asked for cannot be done.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from llama_repro.capture.cache import cache_dir, make_folder, stored_problems
from llama_repro.capture.configs import CONFIGS, find_config
from llama_repro.errors import GoldenError
from llama_repro.harness.golden import key_of, update_golden, worse_than_golden
from llama_repro.harness.measure import Measured, measure
from llama_repro.harness.table import data_of, table_of
from overlap_sched.errors import MissingExtraError, OverlapSchedError
from overlap_sched.report.files import write_file
from overlap_sched.report.plot import plot_schedule
from overlap_sched.report.progress import progress

_WIDTH = 132
"""Columns that the table needs; a narrower terminal wraps its lines, so that no figure is cut off."""


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
    parser.add_argument("--config", default="llama1d", choices=list(CONFIGS), help="which model (default: llama1d)")
    parser.add_argument("--no-torch", action="store_true", help="leave out torch's own pass")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--plots", metavar="DIR", type=Path, help="where to put the pictures (default: pictures/ in the cache)"
    )
    parser.add_argument("--update-golden", action="store_true", help="make this run's figures the committed ones")
    parser.add_argument("--refresh", action="store_true", help="capture anew, whatever the cache holds")
    return parser


def _run(options: argparse.Namespace) -> int:
    config = find_config(options.config)
    with progress() as step:
        stored = stored_problems(config, refresh=options.refresh, progress=step)
        measured = measure(stored, with_torch=not options.no_torch, progress=step)
        step("drawing")
        pictures = _draw(measured, config.name, options.plots)
    console = Console(width=max(Console().width, _WIDTH))
    console.print(table_of(config, stored, measured), highlight=False)
    for line in (*measured.remarks, pictures):
        console.print(line, markup=False, highlight=False)
    failures = [f"{key_of(row)}: {row.problem}" for row in measured.rows if row.problem]
    if options.update_golden:
        update_golden(config.name, measured)
        console.print("golden.json updated", highlight=False)
    else:
        failures += _compare(config.name, measured, console)
    if options.json:
        text = json.dumps(data_of(config, stored, measured, failures), indent=1)
        write_file(options.json, text.encode())
    for line in failures:
        console.print(f"FAILED {line}", style="red", markup=False, highlight=False)
    return 1 if failures else 0


def _compare(config: str, measured: Measured, console: Console) -> list[str]:
    try:
        worse = worse_than_golden(config, measured)
    except GoldenError as error:
        console.print(f"not compared: {error}", markup=False, highlight=False)
        return []
    if not worse:
        console.print("no figure is worse than the committed ones (golden.json)", highlight=False)
    return worse


def _draw(measured: Measured, config: str, folder: Path | None) -> str:
    """Draw the regression and the fix; says where. A missing matplotlib is an error only for who asked."""
    target = folder or cache_dir() / "llama_repro" / "pictures"
    make_folder(target, "name another with --plots")
    try:
        for name, schedule in measured.schedules.items():
            plot_schedule(schedule, target / f"{config}-{_file_name(name)}.png")
    except MissingExtraError as error:
        if folder is not None:
            raise
        return f"no pictures: {error}"
    return f"{len(measured.schedules)} pictures in {target}"


def _file_name(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
