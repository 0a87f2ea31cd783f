"""The table as documents have it."""

from collections.abc import Iterable, Sequence

from llama_repro.harness.console import markdown_table
from scripts.studies.fit.rows import LIMITS, SLOWDOWNS, FitRow

HEADS = (
    "step",
    "way",
    *(f"slowdown at {100 * limit:.0f} % of the peak" for limit in LIMITS),
    *(f"peak at {100 * slowdown:.0f} % slowdown" for slowdown in SLOWDOWNS),
    "seconds",
)


def fit_table(rows: Sequence[FitRow]) -> str:
    """One line per row; a step is named once, with its nodes, peak and time."""
    return markdown_table(HEADS, _lines(rows))


def _lines(rows: Sequence[FitRow]) -> Iterable[Sequence[str]]:
    named = ""
    for row in rows:
        first = row.graph != named
        named = row.graph
        yield (
            _step(row) if first else "",
            f"**{row.by}**" if row.by.startswith("ours") else row.by,
            *(_slowdown(row, at) for at in range(len(LIMITS))),
            *("does not fit" if value is None else _percent(value) for value in row.peak_at),
            f"{row.seconds:.0f}" if row.nodes else "",
        )


def _step(row: FitRow) -> str:
    gib, ms = row.original_peak_bytes / 2**30, row.original_step_us / 1e3
    return f"{row.graph}: {row.nodes:,} nodes, {gib:.1f} GiB, {ms:,.0f} ms"


def _percent(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} %"


def _slowdown(row: FitRow, at: int) -> str:
    value = row.slowdown_at[at]
    if value is None:
        return "" if not row.nodes and LIMITS[at] == 0.6 else "does not fit"  # the paper has no figure at 60 %
    return _percent(value, "+")
