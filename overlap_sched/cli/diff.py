"""``overlap-sched diff``: its options, and what it answers."""

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from overlap_sched.cli.diff_files import ORIGINAL, Given, check_plans, read_pair
from overlap_sched.cli.fail_if import Condition, condition_of, failures
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.top import add_top, check_top, top_of
from overlap_sched.errors import OptionsError
from overlap_sched.judge.order_file import order_named
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.limits import Limits
from overlap_sched.report.diff.figures import Figure, figure_data
from overlap_sched.report.diff.orders import Moved, OrdersDiff, diff_orders
from overlap_sched.report.diff.records import given_otherwise, made_by, only_in_one, plan_figures, record_figures
from overlap_sched.report.diff.text import figures_table, names_line, orders_text, rows_text
from overlap_sched.report.units import count, printable
from overlap_sched.report.words.contention import contention_figures


@dataclass(frozen=True)
class DiffRequest:
    """What was asked for.

    Attributes:
        before, after: A and B, of one kind.
        conditions: When to fail.
        top: How many collectives or rows to list; ``None``: all that changed.
    """

    before: Given
    after: Given
    conditions: tuple[Condition, ...]
    top: int | None
    json: bool

    @property
    def of_orders(self) -> bool:
        """Are orders compared? They need their problem."""
        return self.before.kind == "order"

    @property
    def names(self) -> tuple[str, str]:
        """The names of A and B, as given."""
        return self.before.path, self.after.path


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    what = (
        f"an order (plan --out; or the word {ORIGINAL}), a plan (plan --json), or a record (scripts/bench.py --record)"
    )
    add("before", metavar="A", help=what)
    add("after", metavar="B", help="what to compare it with: of the same kind")
    add(
        "--problem",
        metavar="PROBLEM_OR_DUMP",
        help="of two orders, what they are orders of: a problem file (.json, .json.gz) or a torch graph dump (.py, "
        ".txt, plain or .gz)",
    )
    add(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help='exit with 3 if this holds of the change from A to B: "step > +1%%", "exposed > +2ms", "peak > +10MiB", '
        '"reserved > +0%%", "gap > +0.5%%" (of a gap: percentage points), or with < ; can be repeated',
    )
    add("--any-graph", action="store_true", help="compare two plans though their graphs differ in name or size")
    add_top(
        parser,
        "list the N collectives or rows with the largest changes",
        "list everything that changed, the largest changes first",
    )
    add("--json", action="store_true", help="print the same as one JSON object (`overlap-sched schema diff`)")


def request_of(options: argparse.Namespace) -> DiffRequest:
    """The options and the two files, checked before the problem is read."""
    check_top(options, "collectives or rows")
    conditions = tuple(condition_of(text) for text in options.fail_if)
    before, after = read_pair(options.before, options.after, Limits(options.max_input_bytes, options.max_nodes))
    if before.kind == "order" and options.problem is None:
        raise OptionsError(
            f"{options.before} and {options.after} are orders; what they cost depends on the graph. Name it: --problem "
            "PROBLEM_OR_DUMP."
        )
    if before.kind != "order" and options.problem is not None:
        raise OptionsError(
            f"--problem {options.problem}: {options.before} is a {before.kind}, which has its figures already. Leave "
            "--problem out."
        )
    if options.any_graph and before.kind != "plan":
        raise OptionsError(f"--any-graph is for plans, and {options.before} is a {before.kind}. Leave it out.")
    if before.kind == "plan":
        check_plans(before, after, any_graph=options.any_graph)
    return DiffRequest(before, after, conditions, top_of(options), options.json)


Shown = str | tuple[RenderableType, ...]


def answer(request: DiffRequest, problem: Problem | None) -> tuple[Shown, list[str]]:
    """Compare; what to print, and a line for standard error per condition that holds."""
    if problem is not None:
        found = _orders(request, problem)
    else:
        found = _plans(request) if request.before.kind == "plan" else _records(request)
    figures, data, text = found
    failed = failures(request.conditions, figures, " and ".join(request.names))
    lines = [failure.line() for failure in failed]
    if not request.json:
        return text, lines
    shown = {
        "of": f"{request.before.kind}s",
        "before": request.before.path,
        "after": request.after.path,
        **data,
        "figures": figure_data(figures),
        "failed": [{"condition": f.condition.text, "figures": figure_data(f.figures)} for f in failed],
    }
    return as_json("diff", shown), lines


Found = tuple[tuple[Figure, ...], dict[str, Any], tuple[RenderableType, ...]]
"""Figures, what more there is for ``--json``, and the text."""


def _orders(request: DiffRequest, problem: Problem) -> Found:
    before, after = (_order(given, problem) for given in (request.before, request.after))
    diff = diff_orders(problem, before, after)
    text = () if request.json else orders_text(diff, request.names, request.top)
    return diff.figures, _orders_data(diff, request.top) if request.json else {}, text


def _order(given: Given, problem: Problem) -> Order:
    return problem.original_order if given.path == ORIGINAL else order_named(given.names, problem, given.path)


def _plans(request: DiffRequest) -> Found:
    before, after = request.before.data or {}, request.after.data or {}
    figures = tuple(plan_figures(before, after, request.names))
    notes = given_otherwise(before, after)
    names, nodes = [data.get("name") for data in (before, after)], [data.get("nodes") for data in (before, after)]
    name = names[1] if names[0] == names[1] else f"{names[0]} → {names[1]}"
    many = f"{nodes[1]:,} nodes" if nodes[0] == nodes[1] else f"{nodes[0]:,} → {nodes[1]:,} nodes"
    caption = (
        f"Simulated, in the {before.get('memory_model')} memory model. A: {printable(request.names[0])}. "
        f"B: {printable(request.names[1])}. Collective by collective: compare the orders (plan --out)."
    )
    table = figures_table(figures, f"{printable(str(name))}: {many}", caption)
    data = {"name": after.get("name"), "nodes": after.get("nodes"), "memory_model": after.get("memory_model")}
    return figures, {**data, "notes": notes}, (table, *(["\n" + "\n".join(notes)] if notes else []))


def _records(request: DiffRequest) -> Found:
    before, after = request.before.data or {}, request.after.data or {}
    figures = tuple(record_figures(before, after, request.names))
    gone, new = only_in_one(before, after)
    rows = len({figure.of for figure in figures})
    head = "\n".join(
        [
            f"A: {printable(request.names[0])} ({made_by(before)})",
            f"B: {printable(request.names[1])} ({made_by(after)})",
            f"{count(rows, 'row')} in both. Figures are as recorded: simulated or measured, as those commands say.",
        ]
    )
    notes = [*names_line("Only in A", gone), *names_line("Only in B", new)]
    return figures, {"notes": notes}, (f"{head}\n", *rows_text(figures, request.top), *(f"\n{note}" for note in notes))


def _orders_data(diff: OrdersDiff, top: int | None) -> dict[str, Any]:
    """Return what two orders have beyond the figures; times in microseconds."""
    problem = diff.problem
    return {
        "name": problem.name,
        "nodes": len(problem.nodes),
        "memory_model": problem.memory_model,
        "contention": contention_figures(problem.contention),
        "moved": len(diff.moved),
        "causes": [
            {"name": name, "before_us": before, "after_us": after}
            for name, (before, after) in sorted(diff.causes_us.items())
        ],
        "collectives_changed": len(diff.collectives),
        "collectives": [_collective(diff, moved) for moved in diff.collectives[:top]],
    }


def _collective(diff: OrdersDiff, moved: Moved) -> dict[str, Any]:
    node = diff.problem.nodes[moved.collective]
    return {
        "name": node.name,
        "group": node.group,
        "launch_moved": moved.launch,
        "wait_moved": moved.wait,
        "exposed_change_us": moved.exposed_us,
        "before": asdict(moved.before),
        "after": asdict(moved.after),
    }
