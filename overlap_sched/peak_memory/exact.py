"""The lowest peak, proven, with an integer program: what :func:`overlap_sched.peak_memory.best.best_order` leaves open.

    best_order           most graphs end here: proven by a cut or by search
      -> whole graph     where the program is small enough
      -> else windows    around the peak, one after another; the bound stays what the cuts and searches proved

The result says *optimal*, or the bound on what is left. Needs the extra ``exact`` only where something is left to do.

**The program.** MODeL's integer program for the order of a window, in cumulative form.

After Steiner, Elhoushi, Kahn, Hegarty, "MODeL: Memory Optimizations for Deep Learning" (ICML 2023). Its variables say
for each tensor and step whether it is created (C) or preserved (P). Here ``y[v, t]`` says whether node ``v`` has run
when step ``t`` ends, so ``C = y[v, t] - y[v, t - 1]``, and ``live[s, t]`` (C or P) is bound from below only::

    one node a step      sum over v of y[v, t] = t + 1;    y[v, t] >= y[v, t - 1]
    precedence           y[v, t] <= y[u, t - 1]            for u before v
    preserved            live[s, t] >= y[maker, t] - y[user, t - 1]     for each user; for one user that is
                         exact, without a variable
    peak                 peak >= sum of bytes x live[s, t] + what is live for its own step only,   for each t; minimised

MODeL's reductions, where they went:

    ASAP/ALAP spans           y is 0 before as many steps as v has ancestors, 1 once only descendants are left
    maximum useful lifetimes  live is 0 before the maker's first and after the users' last step: no variable
    forced preservation       live is 1 from the maker's last to the first possible last use: no variable
    precedence pruning        of u before v only where no node between says it already; not where the spans say it
    scaling                   sizes are divided by their greatest common divisor

Unlike MODeL's, a step runs one node, so spans are tight, and locations come after the order
(:mod:`overlap_sched.peak_memory.addresses`), where fragmentation stays at zero without them.

**The solvers.** The two open solvers behind one function: CP-SAT and HiGHS, both out of OR-tools (the extra ``exact``).

HiGHS comes from there, too, since its own package and OR-tools cannot be loaded into one process (both hold HiGHS).

One thread and a fixed seed: the same program and limits give the same answer, unless the time limit ends the search.
"""

import importlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Literal, NamedTuple

from overlap_sched.errors import MissingExtraError, OptionsError, UnreachableError
from overlap_sched.peak_memory.best import Incumbent, MemoryPlan, best_order, checked, judged, window_at_peak
from overlap_sched.peak_memory.memory_graph import Forward, MemoryGraph, lead_with_inputs, memory_graph_of, run_all
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve, find_reachable

Term = tuple[int, int]
"""(variable, coefficient)."""


@dataclass
class Linear:
    """A constant plus coefficients times variables."""

    constant: int = 0
    terms: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Linear", factor: int = 1) -> "Linear":
        """Add so many times another one; itself."""
        self.constant += factor * other.constant
        for variable, coefficient in other.terms.items():
            self.terms[variable] = self.terms.get(variable, 0) + factor * coefficient
        return self

    def plus(self, other: "Linear", factor: int = 1) -> "Linear":
        """The same as a new one."""
        return Linear(self.constant, dict(self.terms)).add(other, factor)


@dataclass(frozen=True)
class Program:
    """Minimise the peak over binary variables.

    Attributes:
        variables: How many there are; each is 0 or 1. hints: their values in the order so far.
        rows: ``sum of coefficient x variable >= bound``. equal_rows: the same with ``=``.
        steps: Per step what is live, in units of ``unit_bytes``: the peak is the largest.
        unit_bytes: Greatest common divisor of all sizes.
        window: The nodes. ran: per node and step, ``y``.
    """

    variables: int
    hints: Sequence[int]
    rows: Sequence[tuple[Sequence[Term], int]]
    equal_rows: Sequence[tuple[Sequence[Term], int]]
    steps: Sequence[Linear]
    unit_bytes: int
    window: Sequence[int]
    ran: Mapping[tuple[int, int], Linear]

    def order(self, values: Sequence[float]) -> list[int]:
        """The window's nodes in the order that the variables say."""
        steps = len(self.window)

        def when(v: int) -> int:
            return sum(self._value(self.ran[v, t], values) < 0.5 for t in range(steps))

        return sorted(self.window, key=when)

    def _value(self, linear: Linear, values: Sequence[float]) -> float:
        return linear.constant + sum(c * values[x] for x, c in linear.terms.items())


def program_of(graph: MemoryGraph, order: Sequence[int], begin: int, end: int) -> Program:
    """The program of ``order[begin:end]``; outside the window the order stays."""
    return _Builder(graph, order, begin, end).program()


class _Builder:
    def __init__(self, graph: MemoryGraph, order: Sequence[int], begin: int, end: int) -> None:
        self.graph, self.window = graph, list(order[begin:end])
        self.place = {v: at for at, v in enumerate(self.window)}
        walk = Forward(graph)
        run_all(walk, order[:begin])
        self.live_before = walk.live_bytes
        self.begun = {*graph.first, *order[:begin]}
        self.hints: list[int] = []
        self.rows: list[tuple[list[Term], int]] = []
        self._spans()
        self.ran: dict[tuple[int, int], Linear] = {}

    def _spans(self) -> None:
        """First and last step of each node."""
        inside, n = set(self.window), len(self.window)
        before = {v: [u for u in self.graph.before[v] if u in inside] for v in self.window}
        after = {v: [w for w in self.graph.after[v] if w in inside] for v in self.window}
        self.before = before
        ancestors = {v: find_reachable([v], before.__getitem__) for v in self.window}
        self.asap = {v: len(ancestors[v]) for v in self.window}
        self.alap = {v: n - 1 - len(find_reachable([v], after.__getitem__)) for v in self.window}
        self.needed = {  # direct predecessors that no other one implies
            v: [u for u in before[v] if not any(u in ancestors[w] for w in before[v])] for v in self.window
        }

    def variable(self, hint: int) -> Linear:
        self.hints.append(hint)
        return Linear(0, {len(self.hints) - 1: 1})

    def program(self) -> Program:
        n = len(self.window)
        for v in self.window:
            for t in range(-1, n):
                fixed = 0 if t < self.asap[v] else 1 if t >= self.alap[v] else None
                at = Linear(fixed) if fixed is not None else self.variable(int(t >= self.place[v]))
                self.ran[v, t] = at
        equal = []
        for t in range(n):
            total = Linear()
            for v in self.window:
                total.add(self.ran[v, t])
                self.at_least(self.ran[v, t], self.ran[v, t - 1])
                for u in self.needed[v]:
                    self.at_least(self.ran[u, t - 1], self.ran[v, t])
            if total.terms:
                equal.append((list(total.terms.items()), t + 1 - total.constant))
        steps, unit = self._steps()
        return Program(len(self.hints), self.hints, self.rows, equal, steps, unit, self.window, self.ran)

    def at_least(self, left: Linear, right: Linear) -> None:
        """A row: left is at least right."""
        row = left.plus(right, -1)
        terms = [(x, c) for x, c in row.terms.items() if c]
        if terms:
            self.rows.append((terms, -row.constant))

    def _steps(self) -> tuple[list[Linear], int]:
        """Return what is live at each step, in units of the common divisor."""
        graph, n = self.graph, len(self.window)
        parts: list[tuple[int, list[Linear]]] = []
        base = self.live_before
        for s in dict.fromkeys(s for v in self.window for s in (*graph.makes[v], *graph.uses[v])):
            if graph.size[s]:
                ranges = self._live_variables(s)
                base -= 0 if graph.maker[s] in self.place else graph.size[s]
                parts.append((graph.size[s], ranges))
        for v in self.window:
            if graph.passing_bytes[v]:
                parts.append((graph.passing_bytes[v], [self.ran[v, t].plus(self.ran[v, t - 1], -1) for t in range(n)]))
        unit = gcd(base, *(size for size, _ in parts)) or 1
        steps = []
        for t in range(n):
            live = Linear(base // unit)
            for size, ranges in parts:
                live.add(ranges[t], size // unit)
            steps.append(live)
        return steps, unit

    def _live_variables(self, s: int) -> list[Linear]:
        """Per step, whether a storage is live."""
        graph, n = self.graph, len(self.window)
        maker = graph.maker[s]
        made = [self.ran[maker, t] if maker in self.place else Linear(1) for t in range(n)]
        inside = [u for u in graph.users[s] if u in self.place]
        stays = any(u not in self.place and u not in self.begun for u in graph.users[s]) or not graph.users[s]
        if stays or (len(inside) == 1 and inside[0] == maker):
            return made if stays else [made[t].plus(self.ran[maker, t - 1], -1) for t in range(n)]
        if len(inside) == 1:
            return [made[t].plus(self.ran[inside[0], t - 1], -1) for t in range(n)]
        last_possible = max(self.alap[u] for u in inside)
        surely_until = max(self.asap[u] for u in inside)
        first = self.asap[maker] if maker in self.place else 0
        surely_from = self.alap[maker] if maker in self.place else 0
        ranges = []
        for t in range(n):
            if first <= t <= last_possible and not surely_from <= t <= surely_until:
                made_then = t >= self.place.get(maker, -1)
                live = self.variable(int(made_then and any(self.place[u] >= t for u in inside)))
                for u in inside:
                    if u != maker:
                        self.at_least(live.plus(self.ran[u, t - 1]), made[t])
            else:
                live = Linear(int(first <= t <= last_possible))
            ranges.append(live)
        return ranges


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
