"""The table of docs/rewrites.md: steps with and without rewrites on the shared graphs, at NCCL-tuned prices. Simulated.

    python -m scripts.studies.rewrites                                   all rows
    python -m scripts.studies.rewrites 70b.json.gz:4 --kinds keep --kinds bucket,keep --headroom 10%

A row is NAME:SCALE: a graph of scripts/instances or a problem file, every collective SCALE times as long.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from llama_repro import INSTANCES
from overlap_sched import Options, Problem, read_problem
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.options import RewriteKind
from overlap_sched.report.units import change
from overlap_sched.report.words.schedule import reserved_of
from overlap_sched.transform.plan import plan
from overlap_sched.transform.prices import Prices, on_cluster

ROWS = ("llama3_8b_bw_64_2d:1", "llama3_8b_bw_64_2d:4", "dsv3_bw_64:1", "dsv3_bw_64:4", "llama3_8b_bw_64_1d:1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="NAME:SCALE", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--cluster", default="dgx-h100", help="a cluster file, or the name of one that is shipped")
    parser.add_argument("--headroom", default="0", help="as for plan")
    parser.add_argument("--kinds", action="append", help="rewrites as for plan, in place of our own rows; repeatable")
    options = parser.parse_args(arguments)
    print("| graph | rewrites | step ms | its bound | peak | reserved | collectives | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in options.rows or ROWS:
        name, _, scale = row.partition(":")
        path = Path(name) if name.endswith(".gz") else INSTANCES / f"{name}.json.gz"
        problem = read_problem(path)
        label = f"{path.name.removesuffix('.json.gz')}:{scale or 1}"
        _row(label, *on_cluster(problem, read_cluster(options.cluster), float(scale or 1)), options)
    return 0


def _row(row: str, problem: Problem, prices: Prices, options: argparse.Namespace) -> None:
    ours: dict[str, tuple[RewriteKind, ...]] = {
        "none": (),
        "gathers": Options().rewrites,
        "bucket": ("bucket",),
        "stream": ("bucket", "stream"),
    }
    if options.kinds:
        ours = {"none": (), **{text: cast(tuple[RewriteKind, ...], tuple(text.split(","))) for text in options.kinds}}
    for what, kinds in ours.items():
        began = time.process_time()
        found = plan(problem, prices, Options(headroom=options.headroom, rewrites=kinds)).schedule
        seconds = time.process_time() - began
        peak = 100 * (found.scheduled.peak_bytes / found.original.peak_bytes - 1)
        replayed = reserved_of(found, problem)
        reserved = "-" if replayed is None else change(replayed.before, replayed.after)
        print(
            f"| {row} | {what} | {found.scheduled.step_us / 1e3:.1f} | {found.lower_bound_us / 1e3:.1f} | {peak:+.1f} % | "
            f"{reserved} | {len(found.problem.collectives)} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
