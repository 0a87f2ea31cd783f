"""What others make of a step, each on the same graph, at the same prices, by the same judge."""

from collections.abc import Callable, Iterator, Mapping

from torch import fx

from llama_repro.errors import OverBudgetError
from llama_repro.workloads.dtr import dtr_run
from llama_repro.workloads.models import Workload
from llama_repro.workloads.optimal import fastest
from llama_repro.workloads.partitioner import BUDGETS, partitioned
from llama_repro.workloads.points import Point, point
from llama_repro.workloads.repeats import repeated
from llama_repro.workloads.trace import step_problem, with_updates
from overlap_sched.peak_memory import best_order
from overlap_sched.problem import Problem

SHARES = tuple(n / 20 for n in range(19, 2, -1))
"""Budgets that DTR is run at, as parts of the original peak."""


SOLVED_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Budgets that the solver is given."""


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


def by_solver(problem: Problem, time_limit_s: float) -> Iterator[Point]:
    """The best recomputation that CP-SAT finds at each budget within so many seconds each, beginning with DTR's."""
    original_bytes = point(problem).peak_bytes
    for share in SOLVED_SHARES:
        run = fastest(problem, int(share * original_bytes), time_limit_s).run
        if run is not None:
            yield point(repeated(problem, run))


BASELINES: Mapping[str, Callable[[Problem], Iterator[Point]]] = {"our order alone": reordered, "DTR": rematerialized}
"""By name, of a problem alone. The partitioner takes the FX graph."""
