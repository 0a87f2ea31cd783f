"""Steps under errors as a table."""

from collections.abc import Sequence

from rich.table import Table

from overlap_sched.analysis.robustness import Robustness
from overlap_sched.problem import Problem
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import duration, printable
from overlap_sched.report.words.contention import with_contention_line


def robust_table(
    problem: Problem, sigma: float, tail: float, draws: int, rows: Sequence[tuple[str, Robustness, Robustness]]
) -> Table:
    """Two lines per order: predicted step, mean and 95th percentile; the same where collectives are delayed too."""
    table = captioned_table(
        title=f"{printable(problem.name)}: the step when predicted times are wrong",
        caption=with_contention_line(
            f"Simulated: {draws:,} replays of each order, all with the same errors: log-normal, 1 on average, "
            f"sigma {sigma:g}. With tails: {100 * tail:g} % of the collectives take twice as long on average, too.",
            problem.contention,
        ),
        numbers=("predicted", "mean", "", "95 %"),
        first="order",
    )
    for by, plain, tailed in rows:
        style = "bold" if by == "scheduled" else None
        table.add_row(printable(by), duration(plain.predicted_us), *_cells(plain), style=style)
        table.add_row("  with tails", "", *_cells(tailed), style=style)
    return table


def _cells(found: Robustness) -> tuple[str, str, str]:
    return duration(found.mean_us), f"{found.rise_percent:+.2f} %", duration(found.p95_us)
