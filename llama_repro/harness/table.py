"""The rows of one configuration as a table for people and as data."""

from typing import Any

from rich import box
from rich.table import Table

from llama_repro.capture.cache import Stored
from llama_repro.capture.configs import LlamaConfig
from llama_repro.harness.measure import PUBLISHED_GB, Measured, Row
from overlap_sched.problem import MemoryModel, Problem
from overlap_sched.report.units import change, duration, size

_PUBLISHED_CONFIG = "llama1d"


def table_of(config: LlamaConfig, stored: Stored, measured: Measured) -> Table:
    """One line per scheduler; peaks in both memory models, the one that it was made in marked by a star."""
    published = config.name == _PUBLISHED_CONFIG
    table = Table(title=_title(stored.problems["tracker"], config), caption=_caption(stored, measured, published))
    table.box = box.SIMPLE_HEAD
    table.caption_justify = "left"
    table.add_column("order", no_wrap=True)
    columns = ["peak, tracker", "peak, runtime", "step", "exposed", "gap", "pass"]
    for column in columns[:1] + ["published"] * published + columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for row in measured.rows:
        peaks = [_peak(row, measured.original, model) for model in ("tracker", "runtime")]
        if published:
            peaks.insert(1, f"{PUBLISHED_GB[row.name]:.2f} GB" if row.name in PUBLISHED_GB else "")
        times = [duration(row.step_us), duration(row.exposed_us), f"{row.gap_percent:.2f} %"]
        took = f"{row.pass_s:.2f} s" if row is not measured.original else ""
        table.add_row(row.name, *peaks, *times, took, style="red" if row.problem else None)
    return table


def _title(problem: Problem, config: LlamaConfig) -> str:
    ops = [problem.nodes[v].op for v in problem.collectives]
    counts = ", ".join(f"{ops.count(op)} {op}" for op in dict.fromkeys(ops))
    return f"{config.name}, backward graph of one of {config.world} ranks: {len(problem.nodes):,} nodes, {counts}"


def _peak(row: Row, original: Row, model: MemoryModel) -> str:
    peak = row.peak_bytes[model]
    star = " *" if row.model == model else "  "
    if row is original:
        return f"{size(peak)}{'':9}{star}"
    return f"{size(peak)} {change(original.peak_bytes[model], peak):>8}{star}"


def _caption(stored: Stored, measured: Measured, published: bool) -> str:
    lines = [
        f"Simulated. Lower bound on any order's step: {duration(measured.bound_us)}. * made in this memory model.",
        f"Pass: wall clock; ours with lifting the FX graph ({stored.lift_s:.2f} s). "
        f"Capturing the graph took {stored.capture_s:.0f} s.",
    ]
    if published:
        lines.append(
            "Published: peaks of torch's llama1d_bwd in the tracker model; torch's pass counts a GB as 2^30 bytes."
        )
    return "\n".join(lines)


def data_of(config: LlamaConfig, stored: Stored, measured: Measured, failures: list[str]) -> dict[str, Any]:
    """What ``--json`` writes: bytes, microseconds, percent, seconds."""
    problem = stored.problems["tracker"]
    published = PUBLISHED_GB if config.name == _PUBLISHED_CONFIG else {}
    return {
        "config": config.name,
        "nodes": len(problem.nodes),
        "collectives": len(problem.collectives),
        "bound_us": measured.bound_us,
        "capture_s": stored.capture_s,
        "lift_s": stored.lift_s,
        "rows": [
            {
                "name": row.name,
                "memory_model": row.model,
                "headroom_bytes": row.headroom_bytes,
                "tracker_peak_bytes": row.peak_bytes["tracker"],
                "runtime_peak_bytes": row.peak_bytes["runtime"],
                "published_gb": published.get(row.name),
                "step_us": row.step_us,
                "exposed_us": row.exposed_us,
                "gap_percent": row.gap_percent,
                "pass_s": row.pass_s,
            }
            for row in measured.rows
        ],
        "remarks": list(measured.remarks),
        "failures": failures,
    }
