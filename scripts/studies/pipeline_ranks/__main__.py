"""Pipelined steps, predicted and measured on CPU ranks over an emulated link.

    python -m scripts.studies.pipeline_ranks                     2 and 4 ranks whose compute is emulated by sleeping
    python -m scripts.studies.pipeline_ranks --compute real --ranks 2
"""

import argparse
import os
import tempfile
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


def table(rows: list[Row]) -> str:
    """For the README."""
    heads = ["schedule", "predicted", "measured", "", "fastest, slowest", "compute, predicted", "measured", "losses"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    known = next(row.losses for row in rows if row.predicted.name == "1f1b")
    for row in rows:
        plan, step_us = row.predicted, median(row.steps_us)
        off = ((row.losses - known).abs() / known).max().item()
        cells = [
            plan.name,
            f"{plan.step_us / 1e3:.0f} ms",
            f"{step_us / 1e3:.0f} ms",
            f"{100 * (step_us / plan.step_us - 1):+.1f} %",
            f"{min(row.steps_us) / 1e3:.0f}, {max(row.steps_us) / 1e3:.0f} ms",
            f"{plan.busy_us / 1e3:.0f} ms",
            f"{row.busy_us / 1e3:.0f} ms",
            "bitwise" if torch.equal(row.losses, known) else f"{off:.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table per number of ranks and link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--compute", choices=("sleep", "real"), default="sleep")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["eager"], help="what starts a transfer")
    parser.add_argument("--transfer-ms", nargs="+", type=float, default=[2.0, 20.0], help="a fifth of it is latency")
    parser.add_argument("--csv-format", choices=get_args(CsvFormat), default="compute_only")
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    for ranks in options.ranks:
        size = (16, 64, SLEEPS_S) if options.compute == "sleep" else (128, 512, None)
        model = Model(4 * ranks, *size)
        for ms in options.transfer_ms:
            link = PipelineLink(0.2e3 * ms, model.output_bytes / (0.8e-3 * ms))
            for kind in options.links:
                setting = Setting(model, ranks, options.micro_batches, link, kind, options.csv_format, options.steps)
                print(f"\n{ranks} ranks, transfers of {ms:g} ms, {kind}; torch {torch.__version__}, load before:")
                print(*(f"{load:.1f}" for load in os.getloadavg()), flush=True)
                print(table(rows_of(setting)), flush=True)


if __name__ == "__main__":
    main()
