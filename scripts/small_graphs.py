#!/usr/bin/env python3
"""How far from the true optimum, on three hundred small graphs? Ours at headroom 0 beside an exact solver's order.

    scripts/small_graphs.py                    one line per family of graphs, and the worst ones
    scripts/small_graphs.py --update           write the figures that the tests guard (tests/data/small_graphs.json)

The graphs (tests/support/small_graphs.py) have up to 25 nodes: gathers, matmuls, reductions on up to three process
groups, by fixed seeds. The optimum (tests/support/exact_search.py) is the shortest step of any order within the
original peak; simulated, runtime memory model. "reachable" is the best order of which every beginning can be completed
in the original order within the budget.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the solvers belong to the tests

from rich.console import Console
from rich.table import Table

from overlap_sched.report.terminal import captioned_table, progress
from tests.support.small_graphs import FAMILIES, GOLDEN, SEEDS, Row, measure, small_graph, summary, write_golden


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    with progress() as tell:
        for seed in SEEDS:
            problem = small_graph(seed)
            tell(f"{problem.name}: {seed + 1} of {len(SEEDS)}")
            rows.append(measure(problem))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(by_family(rows))
    console.print(worst(rows))
    if options.update:
        write_golden(rows)
        console.print(f"Written: {GOLDEN}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help=f"write {GOLDEN.name}")
    return parser


def by_family(rows: Sequence[Row]) -> Table:
    """One line per family, and all."""
    heads = ("", "optimal", "original", "reachable", "ours", "ours, worst")
    caption = "Simulated, headroom 0. Gaps are to the true optimum: mean (worst)."
    table = captioned_table("Ours beside the optimum", caption, heads, first="graphs")
    for family in (*FAMILIES, ""):
        total = summary([row for row in rows if row.name.startswith(family)])
        gaps = (total.original_percent, total.reachable_percent, total.mean_percent, total.worst_percent)
        shown = [f"{gap:.2f} %" for gap in gaps]
        table.add_row(family or "all", str(total.graphs), str(total.optimal), *shown, style=None if family else "bold")
    return table


def worst(rows: Sequence[Row], count: int = 10) -> Table:
    """The graphs with the largest gaps."""
    heads = ("nodes", "original", "ours", "reachable", "optimal", "gap")
    table = captioned_table("The worst", "", heads, first="graph")
    for row in sorted(rows, key=lambda row: -row.gap_percent)[:count]:
        steps = (row.original_us, row.scheduled_us, row.reachable_us, row.optimal_us)
        table.add_row(row.name, str(row.nodes), *(f"{us:.0f} us" for us in steps), f"{row.gap_percent:.1f} %")
    return table


if __name__ == "__main__":
    sys.exit(main())
