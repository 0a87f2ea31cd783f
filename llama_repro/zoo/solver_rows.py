"""CP-SAT and HiGHS on the same programs: windows around the peaks of traced steps, in their original order."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from llama_repro.zoo.rows import timed
from overlap_sched.peak_memory.memory_graph import memory_graph_of
from overlap_sched.peak_memory.program import program_of
from overlap_sched.peak_memory.repair import judged
from overlap_sched.peak_memory.solvers import Solver, solve
from overlap_sched.peak_memory.windows import window_at_peak
from overlap_sched.problem import Problem

NO_LIMIT = 1e6
"""Of effort: the clock ends the search here."""
SOLVERS: tuple[Solver, ...] = ("cp-sat", "highs")


@dataclass(frozen=True)
class SolverRow:
    """One solver on one program.

    Attributes:
        graph: Where the window is from. window: nodes in it. variables, rows: of the program.
        solver: Which.
        lowest_bytes: The lowest peak of the window found; ``None``: none within the limits.
        proven: Whether it ended with a proof.
        solve_s: Processor time, one thread.
    """

    graph: str
    window: int
    variables: int
    rows: int
    solver: Solver
    lowest_bytes: int | None
    proven: bool
    solve_s: float


def solver_rows(problem: Problem, lengths: tuple[int, ...], time_limit_s: float) -> Iterator[SolverRow]:
    """Both solvers on windows of about these lengths around the original order's peak."""
    graph = memory_graph_of(problem)
    start = judged(graph, graph.rest)
    for length in lengths:
        begin, end = window_at_peak(graph, start, length // 2)
        program = program_of(graph, start.order, begin, end)
        unit = program.unit_bytes
        for solver in SOLVERS:
            ceiling = start.score[0] // unit
            solved, solve_s = timed(partial(solve, program, solver, 0, ceiling, time_limit_s, NO_LIMIT))
            lowest = None
            if solved.values is not None:
                values = solved.values
                lowest = unit * round(
                    max(step.constant + sum(c * values[x] for x, c in step.terms.items()) for step in program.steps)
                )
            yield SolverRow(
                problem.name, end - begin, program.variables, len(program.rows), solver, lowest, solved.ended, solve_s
            )
