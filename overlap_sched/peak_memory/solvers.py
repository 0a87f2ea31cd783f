"""The two open solvers behind one function: CP-SAT and HiGHS, both out of OR-tools (the extra ``exact``).

HiGHS comes from there, too, since its own package and OR-tools cannot be loaded into one process (both hold HiGHS).

One thread and a fixed seed: the same program and limits give the same answer, unless the time limit ends the search.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overlap_sched.errors import MissingExtraError
from overlap_sched.peak_memory.program import Program

Solver = Literal["cp-sat", "highs"]

HIGHS_TOLERANCE = 1e-6
"""HiGHS computes in floating point: sums that differ by less than this share of the peak are the same to it."""


@dataclass(frozen=True)
class Solved:
    """What a solver found.

    Attributes:
        values: Of all variables; ``None`` where it found none.
        bound: No solution's peak is lower, in the program's units.
        ended: Whether the search came to its end: then the values are optimal, or there are none.
    """

    values: Sequence[float] | None
    bound: int
    ended: bool


def solve(program: Program, solver: Solver, floor: int, ceiling: int, time_limit_s: float, effort: float) -> Solved:
    """Minimise the peak.

    Args:
        program: What to solve.
        solver: Which.
        floor: A known lower bound, in the program's units.
        ceiling: Peaks above are of no interest.
        time_limit_s: Seconds.
        effort: Deterministic limit: CP-SAT's own unit, about a second each; a thousand nodes of HiGHS's tree each.

    Raises:
        MissingExtraError: The solver is not installed.
    """
    return (_cp_sat if solver == "cp-sat" else _highs)(program, floor, ceiling, time_limit_s, effort)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingExtraError(
            "the exact search needs OR-tools, which is not installed: pip install 'overlap_sched[exact]'."
        ) from None


def _add_rows(model: Any, program: Program, weighed: Callable[[Sequence[tuple[int, int]]], Any]) -> None:
    """Add the rows that every solution keeps to; ``weighed``: terms as the solver's expression."""
    for terms, bound in program.rows:
        model.add(weighed(terms) >= bound)
    for terms, value in program.equal_rows:
        model.add(weighed(terms) == value)


def _cp_sat(program: Program, floor: int, ceiling: int, time_limit_s: float, effort: float) -> Solved:
    cp = _imported("ortools.sat.python.cp_model")
    model = cp.CpModel()
    x = [model.new_bool_var(f"x{k}") for k in range(program.variables)]

    def weighed(terms: Sequence[tuple[int, int]]) -> Any:
        return cp.LinearExpr.weighted_sum([x[k] for k, _ in terms], [c for _, c in terms])

    _add_rows(model, program, weighed)
    peak = model.new_int_var(floor, max(ceiling, floor), "peak")
    for step in program.steps:
        model.add(weighed(list(step.terms.items())) + step.constant <= peak)
    model.minimize(peak)
    for variable, hint in zip(x, program.hints, strict=True):
        model.add_hint(variable, hint)
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status == cp.INFEASIBLE:
        return Solved(None, ceiling + 1, True)
    found = status in (cp.OPTIMAL, cp.FEASIBLE)
    bound = max(floor, round(solver.best_objective_bound)) if found or status == cp.UNKNOWN else floor
    return Solved([solver.value(v) for v in x] if found else None, bound, status == cp.OPTIMAL)


def _highs(program: Program, floor: int, ceiling: int, time_limit_s: float, effort: float) -> Solved:
    mb = _imported("ortools.linear_solver.python.model_builder")
    model = mb.Model()
    x = [model.new_bool_var(f"x{k}") for k in range(program.variables)]

    def weighed(terms: Iterable[tuple[int, float]]) -> Any:
        return sum((c * x[k] for k, c in terms), 0.0)

    _add_rows(model, program, weighed)
    scale = float(max(ceiling, 1))  # the peak as a share of the most allowed: sizes in bytes are hard on its tolerances
    peak = model.new_num_var(floor / scale, max(ceiling, floor) / scale, "peak")
    for step in program.steps:
        model.add(weighed((k, c / scale) for k, c in step.terms.items()) - peak <= -step.constant / scale)
    model.minimize(peak)
    solver = mb.Solver("highs")  # no hints: OR-tools 9.15 crashes on them here; the ceiling says what is known
    if not solver.solver_is_supported():
        raise MissingExtraError("this build of ortools has no HiGHS: ask for the solver 'cp-sat'.")
    solver.set_time_limit_in_seconds(time_limit_s)
    nodes = max(int(1000 * effort), 1)
    solver.set_solver_specific_parameters(
        f"output_flag=false\nthreads=1\nrandom_seed=0\nmip_rel_gap=0\nmip_max_nodes={nodes}\n"
    )
    status = solver.solve(model)
    slack = math.floor(HIGHS_TOLERANCE * scale)  # in units: below one, what it proves is exact
    if status == mb.SolveStatus.INFEASIBLE:
        return Solved(None, max(floor, ceiling + 1 - slack), slack == 0)
    if status not in (mb.SolveStatus.OPTIMAL, mb.SolveStatus.FEASIBLE):
        return Solved(None, floor, False)
    values = [round(solver.value(v)) for v in x]
    bound = math.ceil(solver.best_objective_bound * scale - 0.5) - slack
    return Solved(values, max(floor, bound), status == mb.SolveStatus.OPTIMAL and slack == 0)
