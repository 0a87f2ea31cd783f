"""``overlap-sched robust``: its options, and what it answers."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.analysis.robustness import DRAWS, MAX_DRAWS, Robustness, check_draws, robustness
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import options_for
from overlap_sched.cost.noise import HEAVY_TAILS, LOG_NORMAL, Noise
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import read_order
from overlap_sched.problem import Order, Problem
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import duration, printable
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.scheduler.driver import schedule

MAX_SIGMA = 10.0
"""Times would be off by factors of thousands."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add(
        "--sigma",
        type=float,
        default=LOG_NORMAL.sigma,
        metavar="X",
        help=f"random error of each time: the standard deviation of its logarithm (default: {LOG_NORMAL.sigma})",
    )
    add(
        "--tail",
        type=float,
        default=HEAVY_TAILS.tail,
        metavar="SHARE",
        help=f"share of collectives that are delayed, in a second series of replays (default: {HEAVY_TAILS.tail})",
    )
    add(
        "--draws",
        type=int,
        default=DRAWS,
        metavar="N",
        help=f"how often to replay each order (default: {DRAWS}, at most {MAX_DRAWS})",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the random errors (default: 0)")
    add(
        "--order",
        metavar="ORDER.json",
        help="also replay this order: a JSON list of node names, as `plan --out` writes",
    )
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema robust`)")


def check(options: argparse.Namespace) -> None:
    """Refuse a value that is out of its range, before anything is read."""
    check_draws(options.draws, options.seed)
    Noise(options.sigma)
    if options.sigma > MAX_SIGMA:
        raise OptionsError(f"--sigma is {options.sigma}; {MAX_SIGMA:g} at most (0.2: errors of about 20 %).")
    Noise(options.sigma, options.tail)


def answer(options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]) -> str | tuple[RenderableType]:
    """Schedule, replay each order under errors; what to print: JSON, or a table."""
    orders: list[tuple[str, Order]] = [("original", problem.original_order)]
    if options.order is not None:
        orders.append((options.order, read_order(options.order, problem)))
    tell(f"scheduling {len(problem.nodes):,} nodes")
    orders.append(("scheduled", schedule(problem, options_for(options, problem)).order))
    rows = list[Row]()
    for by, order in orders:
        plain, tailed = (
            robustness(problem, order, Noise(options.sigma, tail), options.draws, options.seed)
            for tail in (0.0, options.tail)
        )
        tell(f"{len(rows) + 1} of {len(orders)} orders replayed {options.draws:,} times: {by}")
        rows.append((by, plain, tailed))
    if options.json:
        return as_json("robust", _figures(options, problem, rows))
    return (_table(options, problem, rows),)


Row = tuple[str, Robustness, Robustness]
"""Whose order, and what comes of it: without tails, with tails."""


def _figures(options: argparse.Namespace, problem: Problem, rows: Sequence[Row]) -> dict[str, object]:
    return {
        "name": problem.name,
        "sigma": options.sigma,
        "tail": options.tail,
        "draws": options.draws,
        "seed": options.seed,
        "contention": contention_figures(problem.contention),
        "orders": {by: {"errors": asdict(plain), "errors_and_tails": asdict(tailed)} for by, plain, tailed in rows},
    }


def _table(options: argparse.Namespace, problem: Problem, rows: Sequence[Row]) -> Table:
    """Two lines per order: predicted step, mean and 95th percentile; the same where collectives are delayed too."""
    table = captioned_table(
        title=f"{printable(problem.name)}: the step when predicted times are wrong",
        caption=with_contention_line(
            f"Simulated: {options.draws:,} replays of each order, all with the same errors: log-normal, 1 on average, "
            f"sigma {options.sigma:g}. With tails: {100 * options.tail:g} % of the collectives take twice as long "
            "on average, too.",
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
