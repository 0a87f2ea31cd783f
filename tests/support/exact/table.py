"""The three hundred graphs, measured: the scheduler at headroom 0 beside the true optimum; committed figures.

``scripts/small_graphs.py`` prints the table and writes the file; the tests hold both against each other.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Problem
from overlap_sched.scheduler.driver import schedule
from tests.support.exact.search import shortest_step

DATA = Path(__file__).parents[2] / "data"
GOLDEN = DATA / "small_graphs.json"


@dataclass(frozen=True)
class Row:
    """One graph; steps in microseconds.

    Attributes:
        reachable_us: The optimum of what can be reached with the original order to fall back on at every step.
    """

    name: str
    nodes: int
    original_us: float
    scheduled_us: float
    reachable_us: float
    optimal_us: float

    @property
    def gap_percent(self) -> float:
        """Scheduled above optimal."""
        return 100 * (self.scheduled_us / self.optimal_us - 1)


def measure(problem: Problem) -> Row:
    """Schedule it, and solve it exactly, within the original peak."""
    budget, _ = peak_memory(problem, problem.original_order)
    optimal, reachable = shortest_step(problem, budget), shortest_step(problem, budget, completed_as_listed=True)
    assert optimal is not None, "the original order is within its own peak"
    assert reachable is not None, "it is reached from itself"
    original = replay(problem, problem.original_order).step_us
    scheduled = schedule(problem).scheduled.step_us
    return Row(problem.name, len(problem.nodes), original, scheduled, reachable.step_us, optimal.step_us)


@dataclass(frozen=True)
class Summary:
    """Gaps of several graphs to their optimum, in percent; how many have none."""

    graphs: int
    optimal: int
    mean_percent: float
    worst_percent: float
    reachable_percent: float
    original_percent: float


def summary(rows: Sequence[Row]) -> Summary:
    """Means over the graphs."""
    return Summary(
        graphs=len(rows),
        optimal=sum(row.gap_percent < 1e-6 for row in rows),
        mean_percent=fmean(row.gap_percent for row in rows),
        worst_percent=max(row.gap_percent for row in rows),
        reachable_percent=fmean(100 * (row.reachable_us / row.optimal_us - 1) for row in rows),
        original_percent=fmean(100 * (row.original_us / row.optimal_us - 1) for row in rows),
    )


@dataclass(frozen=True)
class Golden:
    """The committed figures: no gap may grow; optima, by name of graph, never change."""

    mean_percent: float
    worst_percent: float
    optimal_us: dict[str, float]


def read_golden(path: Path = GOLDEN) -> Golden:
    """Of the file that ``scripts/small_graphs.py --update`` writes."""
    return Golden(**json.loads(path.read_text()))


def write_golden(rows: Iterable[Row], path: Path = GOLDEN) -> None:
    """One line per graph; gaps rounded up to what is printed."""
    rows = list(rows)
    total = summary(rows)
    optima = ",\n".join(f"  {json.dumps(row.name)}: {row.optimal_us:g}" for row in rows)
    path.write_text(
        f'{{\n "mean_percent": {total.mean_percent + 5e-4:.3f},\n "worst_percent": {total.worst_percent + 5e-3:.2f},\n'
        f' "optimal_us": {{\n{optima}\n }}\n}}\n'
    )
