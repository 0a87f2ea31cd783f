"""What others make of a step, each on the same graph, at the same prices, by the same judge."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from torch import fx

from overlap_sched.peak_memory import best_order
from overlap_sched.problem import Problem
from scripts.studies.fit.blocks import blocks_of
from scripts.studies.fit.checkmate import Program, Runs
from scripts.studies.fit.dtr import dtr_run
from scripts.studies.fit.errors import OverBudgetError
from scripts.studies.fit.models import Workload
from scripts.studies.fit.partitioner import BUDGETS, partitioned
from scripts.studies.fit.points import Point, point
from scripts.studies.fit.repeats import repeated
from scripts.studies.fit.trace import step_problem
from tests.support.traced_step import with_updates

SHARES = tuple(n / 20 for n in range(19, 2, -1))
"""Budgets that DTR is run at, as parts of the original peak."""
SOLVED_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Budgets that the solver is given."""
BLOCKS = 60
"""Of a step, for the solver: what it solves within minutes."""


class Solved(NamedTuple):
    """What the solver found at one budget.

    Attributes:
        share: The budget, as a part of the original peak.
        point: By our judge; ``None``: nothing.
        proven: Whether no other recomputation of whole blocks is faster; or, without a point, that none fits.
        again_us: The least time that is proven to run again, of whole blocks.
    """

    share: float
    point: Point | None
    proven: bool
    again_us: float


def reordered(problem: Problem) -> Iterator[Point]:
    """Our order with the lowest peak, nothing recomputed."""
    yield point(problem, best_order(problem).order)


def rematerialized(problem: Problem) -> Iterator[Point]:
    """DTR's rule at all budgets that it can keep to, in the original order."""
    original_bytes = point(problem).peak_bytes
    for share in SHARES:
        try:
            yield point(repeated(problem, dtr_run(problem, int(share * original_bytes))))
        except OverBudgetError:
            continue


def by_partitioner(workload: Workload, joint: fx.GraphModule) -> Iterator[Point]:
    """What torch's partitioner makes of it at all budgets."""
    for budget in BUDGETS:
        yield point(step_problem(workload, with_updates(partitioned(joint, budget))))


def by_solver(problem: Problem, work: float, most: int = BLOCKS) -> Iterator[Solved]:
    """Checkmate's program at each budget, of a step in so many blocks, each solved from the solution of the last.

    Args:
        problem: Without collectives.
        work: What the solver may do at each budget (CP-SAT's deterministic time).
        most: Blocks.
    """
    original_bytes, program = point(problem).peak_bytes, Program(problem, blocks_of(problem, most))
    runs: Runs | None = None
    for share in SOLVED_SHARES:
        found = program.solved(int(share * original_bytes), work, runs)
        runs = found.runs or runs
        made = None if found.runs is None else point(repeated(problem, program.run_of(found.runs)))
        yield Solved(share, made, found.proven, found.again_us)


BASELINES: Mapping[str, Callable[[Problem], Iterator[Point]]] = {"our order alone": reordered, "DTR": rematerialized}
"""By name, of a problem alone. The partitioner takes the FX graph."""
