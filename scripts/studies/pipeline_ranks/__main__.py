"""Pipelined steps, predicted and measured on CPU ranks over an emulated link.

python -m scripts.studies.pipeline_ranks                     2 and 4 ranks whose compute is emulated by sleeping
python -m scripts.studies.pipeline_ranks --compute real --ranks 2
"""

import argparse
import os
import tempfile
from operator import truediv
from pathlib import Path
from statistics import median
from typing import get_args

import torch
import torch.multiprocessing as mp

from overlap_sched.pipeline.csv_file import CsvFormat
from overlap_sched.pipeline.job import PipelineLink
from scripts.studies.pipeline_ranks.link import LINKS
from scripts.studies.pipeline_ranks.model import Model
from scripts.studies.pipeline_ranks.rank import Row, Setting, run

SLEEPS_S = 0.010, 0.011, 0.009
"""Of a layer: forward, gradient of the input, gradient of the weights."""


def rows_of(setting: Setting) -> list[Row]:
    """Start the ranks, wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (setting, folder), setting.ranks)
        return torch.load(Path(folder) / "rows.pt", weights_only=False)


def lines_of(setting: str, rows: list[Row]) -> list[str]:
    """For the README's table."""
    known = next(row.losses for row in rows if row.name == "1f1b")
    lines = []
    for row in rows:
        step_us, own = median(row.steps_us), map(truediv, row.steps_us, row.own_us)
        cells = [
            setting,
            row.name,
            f"{row.step_us / 1e3:,.0f} ms",
            f"{step_us / 1e3:,.0f} ms",
            f"{100 * (step_us / row.step_us - 1):+.1f} %",
            f"{min(row.steps_us) / 1e3:,.0f}, {max(row.steps_us) / 1e3:,.0f} ms",
            f"{100 * (median(own) - 1):+.1f} %",
            "bitwise" if torch.equal(row.losses, known) else f"{((row.losses - known) / known).abs().max():.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print a row per number of ranks, link and schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--compute", choices=("sleep", "real"), default="sleep")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["eager"], help="what starts a transfer")
    parser.add_argument("--transfer-ms", nargs="+", type=float, default=[2.0, 20.0], help="a fifth of it is latency")
    parser.add_argument("--csv-format", choices=get_args(CsvFormat), default="compute_only")
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    lines: list[str] = []
    for ranks in options.ranks:
        size = (16, 64, SLEEPS_S) if options.compute == "sleep" else (128, 512, None)
        model = Model(4 * ranks, *size)
        for ms in options.transfer_ms:
            link = PipelineLink(0.2e3 * ms, model.output_bytes / (0.8e-3 * ms))
            for kind in options.links:
                setting = Setting(model, ranks, options.micro_batches, link, kind, options.csv_format, options.steps)
                rows = rows_of(setting)
                lines += lines_of(f"{ranks}, {ms:g} ms, {kind}", rows)
                for what, key in (
                    ("predicted", lambda row: row.step_us),
                    ("measured", lambda row: median(row.steps_us)),
                ):
                    print(f"{what}:", " < ".join(row.name for row in sorted(rows, key=key)))
                print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}", flush=True)
    heads = [
        "ranks, transfer, link",
        "schedule",
        "predicted",
        "measured",
        "",
        "fastest, slowest",
        "with its own blocks",
        "losses",
    ]
    print("", f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |", *lines, sep="\n")


if __name__ == "__main__":
    main()
