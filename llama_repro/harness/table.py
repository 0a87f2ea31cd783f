"""The orders of one graph as a table for people and as data."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from llama_repro.harness.measure import Entry, Measured
from overlap_sched.problem import MemoryModel
from overlap_sched.report.terminal import captioned_table
from overlap_sched.report.units import change, duration, size

PUBLISHED_GB = {
    "llama1d": {"original": 65.73, "heap": 105.75, "heap, no prefetch": 173.54, "heap, fallback": 72.15},
}
"""Peaks published for torch's ``llama1d_bwd``, in the tracker model; torch's pass counts a GB as 2**30 bytes."""

_WIDTH = 128
"""Columns; so that titles are not broken, and the tables of several graphs are as wide."""


def table_of(measured: Measured) -> Table:
    """One line per order; peaks in each memory model, the one that it was made in marked by a star."""
    original = measured.entries[0]
    published = PUBLISHED_GB.get(measured.graph)
    heads = [f"peak, {model}" for model in original.rows]
    heads[1:1] = ["published"] if published else []
    table = captioned_table(
        _title(measured), _caption(measured), [*heads, "step", "exposed", "gap", "pass"], first="order"
    )
    table.min_width = _WIDTH
    for entry in measured.entries:
        row = entry.row
        peaks = [_peak(entry, original, model) for model in original.rows]
        if published:
            peaks.insert(1, f"{published[entry.name]:.2f} GB" if entry.name in published else "")
        took = f"{row.pass_s:.2f} s" if entry is not original else ""
        times = (duration(row.step_us), duration(row.exposed_us), f"{abs(row.gap_percent):.2f} %", took)
        table.add_row(entry.name, *peaks, *times, style="red" if entry.broken else None)
    return table


def _title(measured: Measured) -> str:
    problem = measured.problem
    ops = [problem.nodes[v].op for v in problem.collectives]
    counts = ", ".join(f"{ops.count(op)} {op}" for op in dict.fromkeys(ops))
    groups = " and ".join(str(group.size) for group in problem.groups.values())
    return f"{problem.name}: {len(problem.nodes):,} nodes, {counts}, groups of {groups} ranks"


def _peak(entry: Entry, original: Entry, model: MemoryModel) -> str:
    peak = entry.rows[model].peak_bytes
    star = "* " if len(entry.rows) > 1 and entry.model == model else ""
    return f"{star}{size(peak)} {change(original.rows[model].peak_bytes, peak):>8}"


def _caption(measured: Measured) -> str:
    lift_s = measured.stored.lift_s
    bound = duration(measured.entries[0].row.bound_us)
    lines = [f"Simulated. gap: above the lower bound on any order's step, {bound}. pass: wall clock."]
    if lift_s:
        lines.append("*: the memory model that the order was made in. pass of ours: with lifting the graph.")
    if measured.graph in PUBLISHED_GB:
        lines.append("Published: peaks of torch's llama1d_bwd, tracker model; torch's pass counts a GB as 2^30 bytes.")
    return "\n".join(lines)


def data_of(measured: Measured) -> dict[str, Any]:
    """What ``--json`` writes of a graph: bytes, microseconds, percent, seconds."""
    published = PUBLISHED_GB.get(measured.graph, {})
    return {
        "graph": measured.graph,
        "collectives": len(measured.problem.collectives),
        "capture_s": measured.stored.capture_s,
        "lift_s": measured.stored.lift_s,
        "rows": [
            {
                **asdict(entry.row),
                "made_in": entry.model,
                "peaks": {model: row.peak_bytes for model, row in entry.rows.items()},
                "published_gb": published.get(entry.name),
            }
            for entry in measured.entries
        ],
        "remarks": list(measured.remarks),
    }
