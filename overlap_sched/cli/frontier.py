"""``overlap-sched frontier``: its options, and what it answers."""

import argparse
from collections.abc import Callable

from rich.console import RenderableType

from overlap_sched.analysis.frontier import BUDGETS, frontier
from overlap_sched.analysis.frontier_points import Frontier, Point
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.sizes import limit_bytes, time_us
from overlap_sched.cli.source import options_for, options_of
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.sizes import show_number
from overlap_sched.report.files import write_order
from overlap_sched.report.words.frontier import cost_of_limit, cost_of_target, frontier_figures, frontier_table

MAX_BUDGETS = 10_000
_LIMIT = "--memory-limit"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    point = parser.add_mutually_exclusive_group()
    point.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="pick the order with the shortest step that fits into this much memory: 80GB, 24GiB, or 90%% of the "
        "original peak",
    )
    point.add_argument(
        "--target-step",
        metavar="TIME",
        help="pick the order with the lowest peak whose step is at most this: 120ms, 1.5s",
    )
    parser.add_argument(
        "--budgets",
        type=int,
        default=BUDGETS,
        metavar="N",
        help=f"how many memory budgets to try (default: {BUDGETS}, at most {MAX_BUDGETS})",
    )
    parser.add_argument("--out", metavar="ORDER.json", help="write the order picked as a JSON list of node names")
    parser.add_argument("--plot", metavar="OUT.png", help="draw step against peak memory (.png, .svg, .pdf)")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema frontier`)"
    )


def check(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before anything is read."""
    wanted = options_of(options)
    if wanted.headroom != Options(headroom=str(Options().headroom)).headroom:
        raise OptionsError(
            f"--headroom {wanted.headroom}: the frontier goes through all of them. Leave it out; "
            "--memory-limit picks a point."
        )
    if wanted.budget != "peak":
        raise OptionsError(f"--budget {wanted.budget}: the frontier is one of peaks. Leave it out.")
    if wanted.base != "original":
        raise OptionsError(
            f"--base {wanted.base}: the frontier starts from the original order and from the one with the lowest peak. "
            "Leave it out."
        )
    if wanted.allocator not in (Options().allocator, "none"):
        raise OptionsError(
            f"--allocator {wanted.allocator}: the frontier counts live bytes. Leave it out; `overlap-sched plan` with "
            "the headroom of a point replays an allocator."
        )
    if wanted.pins:
        raise OptionsError(
            "--pins: the frontier takes orders that know of none. Leave it out; `overlap-sched plan` with the headroom "
            "of a point keeps them."
        )
    picks = options.memory_limit is not None or options.target_step is not None
    if options.out and not picks:
        raise OptionsError(
            f"--out {options.out}: it writes the order of one point. Pick one: --memory-limit or --target-step."
        )
    if options.budgets > MAX_BUDGETS:
        raise OptionsError(f"--budgets is {show_number(options.budgets)}; it is 3 to {MAX_BUDGETS}.")
    if options.memory_limit is not None:
        limit_bytes(_LIMIT, options.memory_limit, 0)
    _target_us(options)


def _target_us(options: argparse.Namespace) -> float | None:
    return None if options.target_step is None else time_us("--target-step", options.target_step)


def answer(
    options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]
) -> str | tuple[RenderableType] | tuple[RenderableType, str]:
    """Find the frontier, write the files asked for; what to print: JSON, or a table and what the point costs."""
    original, _ = peak_memory(problem, problem.original_order)
    limit = None if options.memory_limit is None else limit_bytes(_LIMIT, options.memory_limit, original)
    target_us = _target_us(options)
    found = frontier(problem, options_for(options, problem), options.budgets, limit, target_us, tell)
    picked, cost = _picked(found, limit, target_us)
    if options.out and picked is not None:
        tell(f"writing {options.out}")
        write_order(options.out, problem, picked.order)
    if options.plot:
        from overlap_sched.report.pictures.curves import plot_frontier

        tell(f"drawing {options.plot}")
        plot_frontier(found, options.plot, picked)
    if options.json:
        return as_json("frontier", frontier_figures(found, picked))
    table = frontier_table(found, picked)
    return (table,) if cost is None else (table, cost)


def _picked(found: Frontier, limit: int | None, target_us: float | None) -> tuple[Point | None, str | None]:
    """The point asked for, and what it costs in a sentence."""
    if limit is not None:
        point = found.within(limit)
        return point, cost_of_limit(found, limit, point)
    if target_us is not None:
        point = found.no_longer_than(target_us)
        return point, cost_of_target(found, target_us, point)
    return None, None
