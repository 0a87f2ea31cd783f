"""The table of docs/footprint.md."""

from collections.abc import Sequence

from llama_repro.footprint.events import KINDS
from llama_repro.footprint.rows import NEEDS_GPU, PREDICTED, Row, explanation
from overlap_sched.report.units import size


def markdown(rows: Sequence[Row]) -> str:
    """Two tables: peaks with ratios, and why."""
    heads = [
        "model",
        "eager",
        "default",
        "dynamic",
        "default, ours, memory",
        *(f"{mode}, predicted" for mode in PREDICTED),
    ]
    lines = [_line([*heads, *NEEDS_GPU]), _line(["---"] * (len(heads) + len(NEEDS_GPU)))]
    for row in rows:
        cells = [f"{row.model}: {row.kind}", *(_peak(row, mode) for mode in ("eager", "default", "dynamic", "memory"))]
        cells += [_pool(row, source) for source in PREDICTED.values()]
        lines.append(_line([*cells, *("needs a GPU" for _ in NEEDS_GPU)]))
    lines += ["", _line(["model", "ratio", "why the compiled peak is another one than eager's"]), _line(["---"] * 3)]
    for row in rows:
        ratio = row.ratio("default")
        lines.append(_line([row.model, "-" if ratio is None else f"{ratio:.2f}", explanation(row)]))
    return "\n".join(lines)


def _peak(row: Row, mode: str) -> str:
    if mode not in row.peaks:
        return "failed" if mode in row.failed else "-"
    ratio = row.ratio(mode)
    return size(row.peaks[mode].bytes) + ("" if mode == "eager" or ratio is None else f" ({ratio:.2f})")


def _pool(row: Row, mode: str) -> str:
    """What the pool reserves, with what lies outside of it: parameters and the batch."""
    if mode not in row.peaks or "eager" not in row.peaks:
        return "-"
    held = row.peaks[mode].pool_bytes + row.peaks[mode].kinds[KINDS[0]]
    return f"{size(held)} ({row.peaks['eager'].bytes / held:.2f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
