"""What could any order gain where compute stands still? Windows of an order, solved exactly.

    python -m scripts.studies.windows                           the instances, x1 (half an hour; needs ortools)
    python -m scripts.studies.windows FILE.json.gz --nodes 100 200 --stalls 4 --seconds 60

All but the nodes of a window stays where it is. Each window is as many nodes around one of the longest stalls, or the
last ones; CP-SAT looks for the order of its nodes that makes the whole step shortest, within the peak of the original
order (:mod:`scripts.studies.windows.model`). "At most" is what it has proved that no order gains. Simulated.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_repro import INSTANCES
from llama_repro.bench.cases import slower_network
from llama_repro.harness.console import guarded, markdown_table
from overlap_sched import Options, schedule
from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.progress import progress
from scripts.studies.windows.model import Window, shortest

HEADINGS = ("graph", "step", "bound", "window", "stands still", "gains", "at most")
IN_FRONT = 0.6
"""This part of a window lies in front of the stall: what hides it comes from there."""
WORTH = 1e-4
"""Of the step: shorter stalls are not looked at."""


@dataclass(frozen=True)
class Row:
    """One window solved; microseconds."""

    window: Window
    stall_us: float
    gain_us: float
    at_most_us: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("windows", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    lines = []
    with progress() as tell:
        for path in options.problems or sorted(INSTANCES.glob("*.json.gz")):
            for scale in options.comm_scale:
                problem = slower_network(read_problem(path), scale)
                tell(f"{problem.name} x{scale:g}")
                order = schedule(problem, Options(memory_model=problem.memory_model)).order
                budget, _ = peak_memory(problem, problem.original_order)
                step_us = replay(problem, order).step_us
                head = (f"{problem.name} x{scale:g}", _ms(step_us), _ms(budget_bound_us(problem, budget)))
                for row in rows(problem, order, budget, options):
                    where = f"{row.window.first} to {row.window.end}"
                    lines.append((*head, where, *map(_ms, (row.stall_us, row.gain_us, row.at_most_us))))
                    print("\t".join(lines[-1]), file=sys.stderr, flush=True)
    print(markdown_table(HEADINGS, lines))
    return 0


def rows(problem: Problem, order: Order, budget: int, options: argparse.Namespace) -> Iterator[Row]:
    """Every window asked for, from the longest stall on, the end of the step last."""
    timeline = replay(problem, order)
    stalls = sorted(range(len(order)), key=lambda at: -timeline.stall_us[order[at]])[: options.stalls]
    stalls = [at for at in stalls if timeline.stall_us[order[at]] > WORTH * timeline.step_us]
    end_us = timeline.step_us - timeline.finish_us[order[-1]]
    for nodes in options.nodes:
        places = [(max(0, at - int(IN_FRONT * nodes)), timeline.stall_us[order[at]]) for at in stalls]
        for first, stall_us in (*places, (len(order) - nodes, end_us)):
            window = Window(first, min(first + nodes, len(order)))
            found, bound_us = shortest(problem, order, window, budget, options.seconds)
            assert violation(problem, found) is None
            assert peak_memory(problem, found)[0] <= budget
            found_us = replay(problem, found).step_us
            yield Row(window, stall_us, timeline.step_us - found_us, timeline.step_us - bound_us)


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files")
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0], help="network as many times as slow")
    parser.add_argument("--nodes", nargs="+", type=int, default=[300], help="nodes of a window")
    parser.add_argument("--stalls", type=int, default=10, help="so many of the longest stalls")
    parser.add_argument("--seconds", type=float, default=40.0, help="work for each window, as CP-SAT counts it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
