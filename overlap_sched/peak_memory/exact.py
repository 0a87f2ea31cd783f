"""The lowest peak, proven, with an integer program: what :func:`overlap_sched.peak_memory.best.best_order` leaves open.

    best_order           most graphs end here: proven by a cut or by search
      -> whole graph     where the program is small enough
      -> else windows    around the peak, one after another; the bound stays what the cuts and searches proved

The result says *optimal*, or the bound on what is left. Needs the extra ``exact`` only where something is left to do.
"""

import time
from dataclasses import replace
from typing import NamedTuple

from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.peak_memory.best import MemoryPlan, best_order, checked
from overlap_sched.peak_memory.memory_graph import MemoryGraph, lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.program import program_of
from overlap_sched.peak_memory.repair import Incumbent, judged
from overlap_sched.peak_memory.solvers import Solver, solve
from overlap_sched.peak_memory.windows import window_at_peak
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve

MOST_WHOLE, WINDOW = 120, 48
"""Nodes: the largest graph that is one program; the length of a window of a larger one."""


def exact_order(
    problem: Problem,
    preserve_collective_order: Preserve = "none",
    *,
    limit_bytes: int | None = None,
    solver: Solver = "cp-sat",
    time_limit_s: float = 60.0,
    effort: int = 2,
) -> MemoryPlan:
    """The order with the lowest peak, or the lowest found within the limits.

    Args:
        problem: What to order.
        preserve_collective_order: As for :func:`best_order`.
        limit_bytes: An order with no higher peak is wanted; any will do. ``None``: the lowest.
        solver: ``cp-sat`` (default) or ``highs``.
        time_limit_s: Seconds for the solver, all its runs together.
        effort: Of the search before it, and ten units of the solver's own deterministic effort each.

    Raises:
        OptionsError: An argument cannot be what it is.
        MissingExtraError: The solver is needed and not installed.
        UnreachableError: No order has a peak within ``limit_bytes``: proven.
        UnreachableError: None was found within time and effort, and none ruled out.
    """
    _check(limit_bytes, solver, time_limit_s)
    plan = best_order(problem, preserve_collective_order, effort)
    if not plan.optimal and (limit_bytes is None or plan.bound_bytes <= limit_bytes < plan.peak_bytes):
        how = _Solving(solver, time.perf_counter() + time_limit_s, 10.0 * max(effort, 1))
        plan = _solved(plan, preserve_collective_order, limit_bytes or 0, how)
    if limit_bytes is None or plan.peak_bytes <= limit_bytes:
        return plan
    if plan.bound_bytes > limit_bytes:
        raise UnreachableError(
            f"no order of {problem.name!r} fits into {limit_bytes} bytes: whatever the order, {plan.bound_bytes} bytes "
            f"are live at some step. The lowest peak known is {plan.peak_bytes} bytes: allow that, or recompute "
            "activations, which is another graph."
        )
    raise UnreachableError(
        f"no order of {problem.name!r} within {limit_bytes} bytes was found in {time_limit_s:g} s at effort {effort}, "
        f"and none was ruled out: the lowest peak found is {plan.peak_bytes} bytes, the bound {plan.bound_bytes}. "
        "Give more time or effort, or a higher limit."
    )


def _check(limit_bytes: int | None, solver: str, time_limit_s: float) -> None:
    if limit_bytes is not None and (
        isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 0
    ):
        raise OptionsError(f"limit_bytes is {limit_bytes!r}; it is a whole number of bytes, 0 or more, or None.")
    if solver not in ("cp-sat", "highs"):
        raise OptionsError(f"solver is {solver!r}; it is 'cp-sat' or 'highs'.")
    if not 0 < time_limit_s < float("inf"):
        raise OptionsError(f"time_limit_s is {time_limit_s!r}; it is a number of seconds above 0.")


class _Solving(NamedTuple):
    """Which solver, until when, and with how much effort a run."""

    solver: Solver
    ends_at: float
    effort: float

    @property
    def left_s(self) -> float:
        return self.ends_at - time.perf_counter()


def _solved(plan: MemoryPlan, preserve: Preserve, limit_bytes: int, how: _Solving) -> MemoryPlan:
    """The plan, with what the solver adds to it."""
    graph = memory_graph_of(plan.problem, preserve)
    inputs = set(graph.first)
    best = judged(graph, [v for v in plan.order if v not in inputs])
    bound, n = plan.bound_bytes, len(graph.rest)
    goal = max(bound, limit_bytes)
    length = n if n <= MOST_WHOLE else WINDOW
    while best.score[0] > goal and best.peak_node >= 0 and how.left_s > 0:
        begin, end = (0, n) if length >= n else window_at_peak(graph, best, length // 2)
        found, solved_bound, ended = _window(graph, best, begin, end, bound, how)
        if (begin, end) == (0, n):
            bound = max(bound, solved_bound)
        if found.score < best.score:
            best = found
        elif (begin, end) == (0, n) or length > 4 * WINDOW or not ended:
            break
        else:
            length *= 2
    if best.score[0] >= plan.peak_bytes:
        return replace(plan, bound_bytes=min(bound, plan.peak_bytes))
    order, peak = lead_with_inputs(graph, best.order), best.score[0]
    checked(graph.problem, order, preserve)
    return replace(plan, order=order, peak_bytes=peak, bound_bytes=min(bound, peak), found_by=how.solver)


def _window(
    graph: MemoryGraph, best: Incumbent, begin: int, end: int, floor: int, how: _Solving
) -> tuple[Incumbent, int, bool]:
    """The best order of a window; a bound on its peak, at most the peak so far; whether the solver came to its end."""
    program = program_of(graph, best.order, begin, end)
    unit, peak = program.unit_bytes, best.score[0]
    lowest, highest = -(-floor // unit), (peak - 1) // unit
    if lowest > highest:  # no multiple of the unit lies between
        return best, peak, True
    solved = solve(program, how.solver, lowest, highest, max(how.left_s, 0.01), how.effort)
    bound = min(solved.bound * unit, peak)
    if solved.values is None:
        return best, bound, solved.ended
    return judged(graph, [*best.order[:begin], *program.order(solved.values), *best.order[end:]]), bound, solved.ended
