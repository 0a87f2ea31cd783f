"""Pipelined steps, predicted and measured on CPU ranks over an emulated link.

python -m scripts.studies.pipeline_ranks                              layers that sleep: 4 ranks on 2 cores do, too
python -m scripts.studies.pipeline_ranks --compute real --ranks 2     layers that compute
"""

import argparse
import itertools
import os
import tempfile
from operator import truediv
from pathlib import Path
from statistics import median
from typing import get_args

import torch
import torch.multiprocessing as mp

from overlap_sched.pipeline.csv_file import CsvFormat
from scripts.studies.pipeline_ranks.link import LINKS
from scripts.studies.pipeline_ranks.rank import Row, Setting, run

HEADS = ("ranks, transfer, link", "schedule", "predicted", "measured", "", "with its own blocks", "losses")


def rows_of(setting: Setting) -> list[Row]:
    """Start the ranks, wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (setting, folder), setting.ranks)
        return torch.load(Path(folder) / "rows.pt", weights_only=False)


def cells(row: Row, known: torch.Tensor) -> list[str]:
    """For the README's table; losses beside those that are known."""
    step_us, own = median(row.steps_us), median(map(truediv, row.steps_us, row.own_us))
    off = "bitwise" if torch.equal(row.losses, known) else f"{((row.losses - known) / known).abs().max():.0e}"
    percent = (f"{100 * (part - 1):+.1f} %" for part in (step_us / row.step_us, own))
    return [row.name, f"{row.step_us / 1e3:,.0f} ms", f"{step_us / 1e3:,.0f} ms", *percent, off]


def main() -> None:
    """Print a row per number of ranks, link and schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--compute", choices=("sleep", "real"), default="sleep")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["eager"], help="what starts a transfer")
    parser.add_argument("--transfer-ms", nargs="+", type=float, default=[2.0, 20.0], help="a fifth of it is latency")
    parser.add_argument("--csv-format", choices=get_args(CsvFormat), default="compute_only")
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    for line in (HEADS, ["---"] * len(HEADS)):
        print(f"| {' | '.join(line)} |")
    for ranks, ms, kind in itertools.product(options.ranks, options.transfer_ms, options.links):
        sleeps = options.compute == "sleep"
        rows = rows_of(Setting(ranks, ms / 1e3, kind, sleeps, options.csv_format, options.steps))
        for row in rows:
            known = next(other.losses for other in rows if other.name == "1f1b")
            print(f"| {ranks}, {ms:g} ms, {kind} | {' | '.join(cells(row, known))} |", flush=True)
    print(f"torch {torch.__version__}, load of the last minutes: {', '.join(f'{x:.1f}' for x in os.getloadavg())}")


if __name__ == "__main__":
    main()
