"""The orders of one graph that the benchmark measures: the original one, torch's, and ours at several headrooms."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS, ORIGINAL, Judge, Row, TorchOrder
from overlap_sched.options import Options
from overlap_sched.problem import MAX_TOTAL_BYTES, Problem
from overlap_sched.scheduler.driver import schedule

OURS = "ours, headroom 0"
TORCH = (DEFAULT_CAPS, NO_CAPS)
AT_TORCHS_PEAK = "ours, torch's peak"
MORE: Mapping[str, int | str] = {"ours, headroom 5%": "5%", "ours, no limit": MAX_TOTAL_BYTES}
"""Headrooms besides 0."""

TorchOrders = Mapping[str, TorchOrder | str]
"""By caps, torch's order; or why there is none."""


def measured(
    problem: Problem,
    network: str,
    torchs: TorchOrders,
    effort: int,
    repeats: int,
    lift_s: float = 0.0,
) -> Iterator[Row]:
    """The original order, torch's, and ours at headroom 0, at larger headrooms and at torch's peak.

    Args:
        problem: What is measured.
        network: Its name.
        torchs: Orders of torch's pass.
        effort: Of ours.
        repeats: Runs of ours at headroom 0.
        lift_s: What lifting it took.
    """
    judge = Judge(problem, network)
    yield judge.row(ORIGINAL, problem.original_order, 0.0)
    torch_row = None
    for name, made in torchs.items():
        if isinstance(made, str):
            yield replace(judge.row(name, problem.original_order, 0.0), remark=made)
        else:
            row = judge.row(name, made.order, made.pass_s)
            yield row
            torch_row = torch_row or row
    options = Options(effort=effort, memory_model=problem.memory_model)
    yield ours(judge, OURS, options, repeats, lift_s)
    for name, headroom in MORE.items():
        yield ours(judge, name, replace(options, headroom=headroom), 1, lift_s)
    if torch_row is not None:
        above = max(torch_row.peak_bytes - judge.peak_bytes, 0)
        row = ours(judge, AT_TORCHS_PEAK, replace(options, headroom=above), 1, lift_s)
        if row.step_us > torch_row.step_us:
            row = replace(
                row, remark=f"{row.step_us / torch_row.step_us - 1:.3%} slower than torch's order at its peak"
            )
        yield row


def ours(judge: Judge, by: str, options: Options, repeats: int = 1, lift_s: float = 0.0) -> Row:
    """Our order; of several runs the median time."""
    walls, cpus = [], []
    for _ in range(repeats):
        began, began_cpu = time.perf_counter(), time.process_time()
        result = schedule(judge.problem, options)
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - began_cpu)
    return judge.ours(by, result, lift_s + statistics.median(walls), lift_s + statistics.median(cpus))
