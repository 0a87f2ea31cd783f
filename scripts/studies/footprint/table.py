"""The tables of scripts/studies/footprint/README.md."""

from collections.abc import Sequence

from llama_repro.harness.console import markdown_table
from overlap_sched.report.units import size
from scripts.studies.footprint.events import KINDS
from scripts.studies.footprint.rows import GRAPHS, OURS, PLAIN, Row, by, explanation, steps, unlike_default

_TITLES = {"": "", "ours": ", ours", "memory": ", ours, memory"}


def markdown(rows: Sequence[Row]) -> str:
    """Peaks with ratios, as torch has it, with our pass, with CUDA graphs; then why."""
    measured = [[f"{row.model}: {row.kind}", *(_peak(row, mode) for mode in PLAIN)] for row in rows]
    reordered = [[row.model, *(_peak(row, by(mode, ours)) for mode in PLAIN for ours in OURS)] for row in rows]
    pools = [
        [row.model, *(_pool(row, mode) for source in GRAPHS.values() for mode in _each(source)), _slack(row)]
        for row in rows
    ]
    whys = [why for row in rows for why in _whys(row)]
    ways = [[row.model, *_way(row)] for row in rows]
    parts = [
        ("Measured, as torch has it:", ["model", *PLAIN], measured),
        (
            "Measured, with our pass:",
            ["model", *(f"{mode}{_TITLES[ours]}" for mode in PLAIN for ours in OURS)],
            reordered,
        ),
        (
            "Predicted, with CUDA graphs (simulated):",
            ["model", *(f"{mode}{_TITLES[o]}" for mode in GRAPHS for o in ("", *OURS)), "not live: reduce-overhead"],
            pools,
        ),
        ("Why, from what is live at the two peaks:", ["model", "mode", "ratio", "beside eager's peak"], whys),
        (
            "Why, one thing switched on after the other (change of the peak):",
            ["model", "eager", "partitioned graph", "Inductor", "donated buffers", "default"],
            ways,
        ),
    ]
    return "\n\n".join(f"{title}\n\n{markdown_table(heads, cells)}" for title, heads, cells in parts)


def _each(mode: str) -> list[str]:
    return [mode, *(by(mode, ours) for ours in OURS)]


def _peak(row: Row, mode: str) -> str:
    if mode not in row.peaks:
        return "failed" if mode in row.failed else "-"
    ratio = row.ratio(mode)
    return size(row.peaks[mode].bytes) + ("" if mode == "eager" or ratio is None else f" ({ratio:.2f})")


def _pool(row: Row, mode: str) -> str:
    held = row.pool_bytes(mode)
    if held is None or "eager" not in row.peaks:
        return "-"
    return f"{size(held)} ({row.peaks['eager'].bytes / held:.2f})"


def _slack(row: Row) -> str:
    """What the pool reserves beyond what is live at the peak."""
    peak = row.peaks.get("default")
    return "-" if peak is None else size(peak.pool_bytes - peak.bytes + peak.kinds[KINDS[0]])


def _whys(row: Row) -> list[list[str]]:
    ratio = row.ratio("default")
    found = [[row.model, "default", "-" if ratio is None else f"{ratio:.2f}", explanation(row)]]
    for mode in unlike_default(row):
        plain, _, ours = mode.partition("+")
        why = f"beside default's: {explanation(row, mode, 'default')}"
        found.append(["", plain + _TITLES[ours], f"{row.ratio(mode):.2f}", why])
    return found


def _way(row: Row) -> list[str]:
    found = steps(row)
    ends = [size(row.peaks[mode].bytes) if mode in row.peaks else "-" for mode in ("eager", "default")]
    changes = ["-"] * 3 if found is None else [f"{'+' if b >= 0 else '-'}{size(abs(b))}" for b in found]
    return [ends[0], *changes, ends[1]]
