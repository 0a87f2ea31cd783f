"""The table of docs/rewrites.md: steps with and without rewrites on the shared graphs, at NCCL-tuned prices. Simulated.

    python -m scripts.studies.rewrites                                   all rows
    python -m scripts.studies.rewrites llama3_8b_bw_64_2d:4 --caps       one row, with buckets up to fixed caps beside it
    python -m scripts.studies.rewrites --torch --torchtitan              beside torch's own pass with its bucketing, and
                                                                       torchtitan's buckets per transformer block

    python -m scripts.studies.rewrites 70b.json.gz:4 --kinds keep --kinds bucket,keep --headroom 10%

A row is NAME:SCALE: a graph of scripts/instances or a problem file, every collective SCALE times as long. Only
``--torch`` and ``--torchtitan`` need torch.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from llama_repro import INSTANCES
from overlap_sched import Options, Problem, read_problem
from overlap_sched.cost.cluster.file import read_cluster
from overlap_sched.judge.validate import measure
from overlap_sched.options import RewriteKind
from overlap_sched.report.units import change
from overlap_sched.report.words.reserved import reserved_of
from overlap_sched.scheduler.best import phases
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.result import Schedule
from overlap_sched.transform.apply import apply
from overlap_sched.transform.buckets import Key, Windows, keys_of
from overlap_sched.transform.plan import FORMS, plan
from overlap_sched.transform.prices import Prices, on_cluster
from overlap_sched.transform.rewrites import Bucket, Form

ROWS = ("llama3_8b_bw_64_2d:1", "llama3_8b_bw_64_2d:4", "dsv3_bw_64:1", "dsv3_bw_64:4", "llama3_8b_bw_64_1d:1")
CAPS_MB = (25, 50, 100, 200)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="NAME:SCALE", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--cluster", default="dgx-h100", help="a cluster file, or the name of one that is shipped")
    parser.add_argument("--caps", action="store_true", help="also buckets of neighbours up to fixed caps, both forms")
    parser.add_argument("--torch", action="store_true", help="also torch's pass, at its default caps and at 0")
    parser.add_argument("--torchtitan", action="store_true", help="also torchtitan's buckets per transformer block")
    parser.add_argument("--no-plans", action="store_true", help="leave our own rows out")
    parser.add_argument("--headroom", default="0", help="as for plan")
    parser.add_argument("--kinds", action="append", help="rewrites as for plan, in place of our own rows; repeatable")
    parser.add_argument("--copied", action="store_true", help="also without coalesced collectives")
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
    rows: list[tuple[str, tuple[RewriteKind, ...], tuple[Form, ...]]] = [
        ("gathers", Options().rewrites, FORMS),
        ("bucket", ("bucket",), FORMS),
        ("stream", ("bucket", "stream"), FORMS),
    ]
    if options.kinds:
        rows = [(text, cast(tuple[RewriteKind, ...], tuple(text.split(","))), FORMS) for text in options.kinds]
    if options.copied:
        rows.append(("bucket, copied only", ("bucket",), ("copied",)))
    for what, kinds, forms in [] if options.no_plans else [("none", (), FORMS), *rows]:
        began = time.process_time()
        found = plan(problem, prices, _options(kinds, options), forms=forms)
        seconds = time.process_time() - began
        _ours(row, what, found.schedule, problem, seconds)
    if options.torch or options.torchtitan:
        _rivals(row, problem, prices, options)
    if options.caps:
        for form in ("copied", "coalesced"):
            for cap in CAPS_MB:
                _capped(row, problem, prices, form, cap)


def _options(kinds: tuple[RewriteKind, ...], options: argparse.Namespace) -> Options:
    return Options(headroom=options.headroom, rewrites=kinds)


def _ours(row: str, what: str, found: Schedule, problem: Problem, seconds: float) -> None:
    peak = 100 * (found.scheduled.peak_bytes / found.original.peak_bytes - 1)
    replayed = reserved_of(found, problem)
    reserved = "-" if replayed is None else change(replayed.before, replayed.after)
    launches = len(found.problem.collectives)
    _print(row, what, (found.scheduled.step_us, found.lower_bound_us), peak, launches, seconds, reserved)


def _rivals(row: str, problem: Problem, prices: Prices, options: argparse.Namespace) -> None:
    from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS
    from scripts.studies.rewrites.torch_buckets import torch_buckets
    from scripts.studies.rewrites.torchtitan_blocks import torchtitan_blocks

    rivals = {}
    if options.torch:
        rivals["torch's own, its caps"] = partial(torch_buckets, problem, prices, DEFAULT_CAPS)
        rivals["torch's own, caps 0"] = partial(torch_buckets, problem, prices, NO_CAPS)
    if options.torchtitan:
        rivals["torchtitan's blocks"] = partial(torchtitan_blocks, problem, prices, two_streams=False)
        rivals["torchtitan's blocks, stream"] = partial(torchtitan_blocks, problem, prices, two_streams=True)
    for what, run in rivals.items():
        began = time.process_time()
        found = run()
        seconds = time.process_time() - began
        _print(row, what, (found.step_us, 0.0), 100 * found.peak_change, found.collectives, seconds)


def _capped(row: str, problem: Problem, prices: Prices, form: Form, cap_mb: int) -> None:
    """Neighbours of the original order up to a cap, everywhere; the order found at the original peak where it fits."""
    began = time.process_time()
    keys, windows = keys_of(problem, None), Windows(problem, problem.original_order)
    open_buckets: dict[Key, list[int]] = {}
    buckets: list[list[int]] = []
    for v in (v for v in problem.collectives if v in keys):
        bucket = open_buckets.get(keys[v], [])
        total = sum(problem.nodes[u].bytes for u in (*bucket, v))
        fits = bucket and total <= cap_mb * 1e6 and windows.ready[v] < min(windows.first_use[u] for u in bucket)
        if not fits:
            open_buckets[keys[v]] = bucket = []
            buckets.append(bucket)
        bucket.append(v)
    names = [tuple(problem.nodes[v].name for v in ids) for ids in buckets if len(ids) > 1]
    after = apply(problem, [Bucket(members, form) for members in names], prices)
    budget = max(measure(problem, problem.original_order).profile)
    own = max(measure(after, after.original_order).profile)
    task = Task(after, Options(), max(budget, own))
    found = phases(task, after.original_order, task.measured(after.original_order))
    peak = 100 * (found.peak_bytes / budget - 1)
    seconds = time.process_time() - began
    _print(row, f"{cap_mb} MB, {form}", (found.step_us, 0.0), peak, len(after.collectives), seconds)


def _print(
    row: str,
    what: str,
    times_us: tuple[float, float],
    peak: float,
    launches: int,
    seconds: float,
    reserved: str = "",
) -> None:
    step_ms, bound_ms = (f"{us / 1e3:.1f}" if us else "" for us in times_us)
    print(
        f"| {row} | {what} | {step_ms} | {bound_ms} | {peak:+.1f} % | {reserved} | {launches} | {seconds:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
