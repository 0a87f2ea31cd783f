"""What a solver found at each budget, and what it could not rule out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llama_repro.harness.console import markdown_table
from scripts.studies.fit.baselines import Solved
from scripts.studies.fit.points import Point


@dataclass(frozen=True)
class SolvedRow:
    """One budget of one step; simulated.

    Attributes:
        graph: The step. share: The budget, as a part of its peak.
        slowdown: Of the best that was found, by our judge; ``None``: nothing was.
        least: No recomputation of whole blocks is shorter than this within the budget; proven.
        proven: Whether what was found is the best, or, where nothing was, that nothing fits.
    """

    graph: str
    share: float
    slowdown: float | None
    least: float
    proven: bool


def solved_rows(graph: str, original: Point, solved: Iterable[Solved]) -> list[SolvedRow]:
    """Of one step."""
    return [
        SolvedRow(
            graph,
            one.share,
            None if one.point is None else one.point.step_us / original.step_us - 1,
            one.again_us / original.step_us,
            one.proven,
        )
        for one in solved
    ]


def solved_table(rows: Sequence[SolvedRow]) -> str:
    """As documents have it."""
    heads = ("step", "budget", "found", "no better than", "")
    return markdown_table(heads, (_cells(row, rows) for row in rows))


def _cells(row: SolvedRow, rows: Sequence[SolvedRow]) -> Sequence[str]:
    first = next(one for one in rows if one.graph == row.graph) is row
    nothing = "none fits" if row.proven else "nothing"
    return (
        row.graph if first else "",
        f"{100 * row.share:.0f} %",
        nothing if row.slowdown is None else f"{100 * row.slowdown:+.1f} %",
        "" if row.slowdown is None and row.proven else f"{100 * row.least:+.1f} %",
        "proven" if row.proven else "not finished",
    )
