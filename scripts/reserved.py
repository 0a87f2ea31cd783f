#!/usr/bin/env python3
"""What torch's caching allocator needs for our order of a graph, beside what it needs for the original one.

    scripts/reserved.py                          graphs beside those of the benchmark, both networks, both kinds
    scripts/reserved.py --later                  graphs by which little or nothing in the scheduler was chosen
    scripts/reserved.py scripts/instances/*      problem files
    scripts/reserved.py --allocator plain --comm-scale 1 --markdown

Per order: live peak, reserved without a limit, the smallest capacity in which it runs, and how often it gives cached
memory back in as much as the original reserves. Simulated at headroom 0. A graph is kept to where ours reserves at most
3 % more, runs in 0.2 % more at most, and has at most one such retry. The graphs are traced without a GPU (a minute
each; then they come from the cache).
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro.bench.cases import slower_network
from llama_repro.harness.console import guarded, markdown_table, wide_console
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options
from overlap_sched.peak_memory.allocator.reserved import reserved_change
from overlap_sched.problem import Problem
from overlap_sched.problem.allocator_settings import EXPANDABLE, PLAIN
from overlap_sched.problem.file import read_problem
from overlap_sched.report.progress import progress
from overlap_sched.report.units import change, duration, size
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.pipeline import schedule

HEADINGS = (
    *("graph, network", "segments", "step without", "step", "live peak", "", "reserved", "", "runs in", "", "retries"),
    *("all kept", "took"),
)
SEGMENTS = {"plain": PLAIN, "expandable": EXPANDABLE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("reserved", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = []
    if options.markdown:
        print(markdown_table(HEADINGS, ()))
    with progress() as tell:
        for row in _rows(options, tell):
            rows.append(row)
            if options.markdown:  # each as it is there: all of them take many minutes
                print(f"| {' | '.join(row)} |", flush=True)
    if not options.markdown:
        table = Table(title="Simulated, headroom 0.", box=box.SIMPLE_HEAD)
        for column in HEADINGS:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        wide_console().print(table)
    print(f"\n{sum(row[-2] == 'yes' for row in rows)} of {len(rows)} kept to.")
    return 0


def _rows(options: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    for problem in _problems(options.problems, options.later, tell):
        for scale in options.comm_scale:
            tell(f"{problem.name} x{scale:g}")
            yield from figures(slower_network(problem, scale), f"x{scale:g}", options.allocator, options.allocator_cost)


def _problems(paths: Sequence[Path], later: bool, tell: Callable[[str], None]) -> Iterator[Problem]:
    if paths and later:
        raise OptionsError("--later is for graphs that are traced, not for problem files; leave one of them out.")
    if paths:
        yield from map(read_problem, paths)
        return
    from llama_repro.generate.unseen import LATER, UNSEEN, unseen_problems

    for config in (LATER if later else UNSEEN).values():
        yield from unseen_problems(config, tell)


def figures(
    problem: Problem, network: str, allocators: Sequence[str], cost: float = Options.allocator_cost
) -> Iterator[tuple[str, ...]]:
    """A row per kind of segments: step with live bytes alone, and ours; then of both orders what memory they need."""
    free = schedule(problem, Options(allocator="none"))
    for name in allocators:
        settings, found = SEGMENTS[name], schedule(problem, Options(allocator=name, allocator_cost=cost))
        memory = reserved_change(problem, problem.original_order, found.order, settings)
        reserve = Reserve.of(Task(problem, Options(), found.base_bytes), settings)
        held = found.order == problem.original_order or reserve.overdraft(found.order) == NOTHING
        cells = [f"{problem.name} {network}", name, duration(free.scheduled.step_us), duration(found.scheduled.step_us)]
        for before, after in (
            (found.original.peak_bytes, found.scheduled.peak_bytes),
            (memory.original_bytes, memory.new_bytes),
            (memory.original_capacity_bytes, memory.new_capacity_bytes),
        ):
            cells += [size(before), change(before, after)]
        retries = "out of memory" if memory.retries is None else str(memory.retries)
        yield (*cells, retries, "yes" if held else "no", f"{found.schedule_s:.1f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files (default: graphs traced for this)")
    parser.add_argument(
        "--later", action="store_true", help="graphs by which little or nothing in the scheduler was chosen"
    )
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0, 4.0], help="networks (default: 1 4)")
    parser.add_argument(
        "--allocator", nargs="+", choices=list(SEGMENTS), default=list(SEGMENTS), help="segments (default: both)"
    )
    what = "percent of the step that keeping to it may cost (default: as for overlap-sched plan)"
    parser.add_argument("--allocator-cost", type=float, default=Options.allocator_cost, metavar="PERCENT", help=what)
    parser.add_argument("--markdown", action="store_true", help="print the table as the documents have it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
