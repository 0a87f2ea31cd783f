"""What is left of each order's step when predicted times are wrong? Ours beside torch's own pass and the original.

    python -m scripts.studies.robust                    every problem in scripts/instances, both networks (minutes: torch's pass)
    python -m scripts.studies.robust --no-torch         ours and the original alone
    python -m scripts.studies.robust --markdown         the table as scripts/studies/robust/README.md has it

A thousand replays of each order; every node's time has an error of 20 % (log-normal, 1 on average), and in a second
series every fiftieth collective takes twice its time on average (Pareto). All orders of a graph meet the same errors.
Simulated; no clock is in it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from llama_repro import INSTANCES
from llama_repro.harness.console import guarded, markdown_table, wide_console
from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS
from overlap_sched.analysis.robustness import DRAWS, robustness
from overlap_sched.cost.noise import HEAVY_TAILS, LOG_NORMAL
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.progress import progress
from overlap_sched.report.units import duration
from overlap_sched.scheduler.driver import schedule

HEADINGS = ("graph, network", "order", "predicted", "mean", "", "95 %", "with tails: mean", "", "95 %")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("robust", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = []
    with progress() as tell:
        for path in options.problems or sorted(INSTANCES.glob("*.json.gz")):
            for scale in options.comm_scale:
                problem = read_problem(path, scale)
                tell(f"{problem.name} x{scale:g}")
                for by, order in orders(problem, options.torch):
                    rows.append((f"{problem.name} x{scale:g}", by, *figures(problem, order, options.draws)))
    if options.markdown:
        print(markdown_table(HEADINGS, rows))
        return 0
    table = Table(title=f"Simulated, {options.draws:,} draws.", box=box.SIMPLE_HEAD)
    for column in HEADINGS:
        table.add_column(column, no_wrap=True, justify="left" if column in HEADINGS[:2] else "right")
    for row in rows:
        if row[1] == "original":
            table.add_section()
        table.add_row(
            row[0] if row[1] == "original" else "", *row[1:], style="bold" if row[1].startswith("ours") else None
        )
    wide_console().print(table)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files (default: all in scripts/instances)")
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0, 4.0], help="networks (default: 1 4)")
    parser.add_argument("--draws", type=int, default=DRAWS, help="replays of each order (default: %(default)s)")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave out torch's own pass")
    parser.add_argument("--markdown", action="store_true", help="print the table as the documents have it")
    return parser


def orders(problem: Problem, torch: bool) -> Iterator[tuple[str, Order]]:
    """The original order, torch's two settings if asked for, and ours at headroom 0."""
    yield "original", problem.original_order
    if torch:
        from llama_repro.harness.torch_pass import torch_order

        yield from ((caps, torch_order(problem, caps).order) for caps in (DEFAULT_CAPS, NO_CAPS))
    yield "ours", schedule(problem, Options(memory_model=problem.memory_model)).order


def figures(problem: Problem, order: Order, draws: int) -> tuple[str, ...]:
    """Predicted, then per kind of errors: mean, its rise, and the step that 95 % of the draws do not exceed."""
    found = [robustness(problem, order, noise, draws) for noise in (LOG_NORMAL, HEAVY_TAILS)]
    shown = [duration(found[0].predicted_us)]
    for one in found:
        shown += [duration(one.mean_us), f"{one.rise_percent:+.2f} %", duration(one.p95_us)]
    return tuple(shown)


if __name__ == "__main__":
    sys.exit(main())
