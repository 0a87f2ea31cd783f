"""The lowest peak, proven, with an integer program: what :func:`overlap_sched.peak_memory.best.best_order` leaves open.

    best_order           most graphs end here: proven by a cut or by search
      -> windows         around the peak, longer ones where none is better; in the end the whole graph

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

Of MODeL's reductions, ASAP/ALAP spans are here: y is 0 before as many steps as v has ancestors, 1 once only descendants
are left; and sizes are divided by their greatest common divisor. The solver finds the others by itself. Unlike MODeL's,
a step runs one node, so spans are tight, and locations come after the order
(:mod:`overlap_sched.peak_memory.addresses`), where fragmentation stays at zero without them.

The solver is CP-SAT of OR-tools, with one thread and a fixed seed: the same program and limits give the same answer,
unless the time limit ends the search.
"""

import importlib
import math
import time
from dataclasses import replace
from typing import Any

from overlap_sched.errors import MissingExtraError, OptionsError, UnreachableError
from overlap_sched.peak_memory.best import MemoryPlan, best_order, check_order, judged, window_at_peak
from overlap_sched.peak_memory.memory_graph import MemoryGraph, Walk, lead_with_inputs, memory_graph_of
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve, find_reachable


class _Program:
    """The orders of ``order[begin:end]``, outside of which all stays. Expressions of what is fixed are numbers."""

    def __init__(self, graph: MemoryGraph, order: list[int], begin: int, end: int) -> None:
        try:
            self.cp = importlib.import_module("ortools.sat.python.cp_model")
        except ModuleNotFoundError:
            raise MissingExtraError(
                "the exact search needs OR-tools, which is not installed: pip install 'overlap_sched[exact]'."
            ) from None
        self.graph, self.model, self.window = graph, self.cp.CpModel(), order[begin:end]
        self.place = {v: at for at, v in enumerate(self.window)}
        self.live_before, self.behind = Walk(graph, done=order[:begin]).live_bytes, {*order[end:]}
        self.unit_bytes = math.gcd(*graph.size) or 1
        self.ran: dict[tuple[int, int], Any] = {}
        self._order()

    def _order(self) -> None:
        n, add = len(self.window), self.model.add
        before, after = (
            {v: [u for u in edges[v] if u in self.place] for v in self.window}
            for edges in (self.graph.before, self.graph.after)
        )
        for v in self.window:
            soonest = len(find_reachable([v], before.__getitem__))
            latest = n - 1 - len(find_reachable([v], after.__getitem__))
            for t in range(-1, n):
                self.ran[v, t] = int(t >= latest)
                if soonest <= t < latest:
                    self.ran[v, t] = self.model.new_bool_var("")
                    self.model.add_hint(self.ran[v, t], self.place[v] <= t)
        for t in range(n):
            add(sum(self.ran[v, t] for v in self.window) == t + 1)
            for v in self.window:
                add(self.ran[v, t] >= self.ran[v, t - 1])
                for u in before[v]:
                    add(self.ran[u, t - 1] >= self.ran[v, t])

    def _live(self, t: int) -> Any:
        """Bytes live at a step, in units."""
        graph, ran, unit = self.graph, self.ran, self.unit_bytes
        total = self.live_before // unit
        for s in dict.fromkeys(s for v in self.window for s in graph.touches[v] if graph.size[s]):
            maker, live = graph.problem.maker[s], 1
            if maker in self.place and not graph.from_start[s]:
                live = ran[maker, t]
            else:
                total -= graph.size[s] // unit
            users = [u for u in graph.touchers[s] if u in self.place and u != maker] or [maker]
            if not graph.to_end[s] and self.behind.isdisjoint(graph.touchers[s]):
                needs = [live - ran[u, t - 1] for u in users]
                live = needs[0] if len(needs) == 1 else self.model.new_bool_var("")
                for need in needs if len(needs) > 1 else ():
                    self.model.add(live >= need)
            total += live * (graph.size[s] // unit)
        return total

    def solve(
        self, floor_bytes: int, ceiling_bytes: int, time_limit_s: float, effort: float
    ) -> tuple[list[int] | None, int, bool]:
        """Minimise the peak: the window's nodes in order; bytes that no order's peak is below; did the search end?

        ``None``: it found no order below the ceiling; where it ended, there is none.

        Args:
            floor_bytes: A known lower bound.
            ceiling_bytes: Peaks above are of no interest.
            time_limit_s: Seconds.
            effort: CP-SAT's own deterministic unit, about a second each.
        """
        cp, unit = self.cp, self.unit_bytes
        lowest, highest = -(-floor_bytes // unit), ceiling_bytes // unit
        if lowest > highest:  # no multiple of the unit lies between
            return None, ceiling_bytes + 1, True
        peak = self.model.new_int_var(lowest, highest, "peak")
        for t in range(len(self.window)):
            self.model.add(self._live(t) <= peak)
        self.model.minimize(peak)
        solver = cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.max_deterministic_time = effort
        status = solver.solve(self.model)
        if status == cp.INFEASIBLE:
            return None, ceiling_bytes + 1, True
        bound = max(lowest, round(solver.best_objective_bound)) * unit
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return None, bound, False
        steps = range(len(self.window))
        order = sorted(self.window, key=lambda v: -sum(solver.value(self.ran[v, t]) for t in steps))
        return order, bound, status == cp.OPTIMAL


def exact_order(
    problem: Problem,
    preserve_collective_order: Preserve = "none",
    *,
    limit_bytes: int | None = None,
    time_limit_s: float = 60.0,
    effort: int = 2,
) -> MemoryPlan:
    """The order with the lowest peak, or the lowest found within the limits.

    Args:
        problem: What to order.
        preserve_collective_order: As for :func:`best_order`.
        limit_bytes: An order with no higher peak is wanted; any will do. ``None``: the lowest.
        time_limit_s: Seconds for the solver, all its runs together.
        effort: Of the search before it, and ten units of the solver's own deterministic effort each.

    Raises:
        OptionsError: An argument cannot be what it is.
        MissingExtraError: The solver is needed and not installed.
        UnreachableError: No order has a peak within ``limit_bytes``: proven.
        UnreachableError: None was found within time and effort, and none ruled out.
    """
    if limit_bytes is not None and (type(limit_bytes) is not int or limit_bytes < 0):
        raise OptionsError(f"limit_bytes is {limit_bytes!r}; it is a whole number of bytes, 0 or more, or None.")
    if not 0 < time_limit_s < math.inf:
        raise OptionsError(f"time_limit_s is {time_limit_s!r}; it is a number of seconds above 0.")
    plan = best_order(problem, preserve_collective_order, effort)
    if not plan.optimal and (limit_bytes is None or plan.bound_bytes <= limit_bytes < plan.peak_bytes):
        ends_at = time.perf_counter() + time_limit_s
        plan = _improved(plan, preserve_collective_order, limit_bytes or 0, ends_at, 10.0 * max(effort, 1))
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


def _improved(plan: MemoryPlan, preserve: Preserve, limit_bytes: int, ends_at: float, effort: float) -> MemoryPlan:
    """The plan, with what the solver adds to it until a time of ``time.perf_counter``."""
    graph = memory_graph_of(plan.problem, preserve)
    inputs = set(graph.first)
    best = judged(graph, [v for v in plan.order if v not in inputs])
    bound, n = plan.bound_bytes, len(graph.rest)
    length = math.isqrt(n)
    while best.peak_bytes > max(bound, limit_bytes) and best.peak_node >= 0 and time.perf_counter() < ends_at:
        begin, end = (0, n) if length >= n else window_at_peak(graph, best, length // 2)
        left_s = max(ends_at - time.perf_counter(), 0.01)
        found, least, ended = _Program(graph, best.order, begin, end).solve(bound, best.peak_bytes - 1, left_s, effort)
        if end - begin == n:
            bound = max(bound, min(least, best.peak_bytes))
        if found is not None:
            best = judged(graph, [*best.order[:begin], *found, *best.order[end:]])
        elif end - begin == n or not ended:
            break
        else:
            length *= 2
    if best.peak_node < 0:  # where inputs are, which come first in every order
        bound = best.peak_bytes
    if best.peak_bytes >= plan.peak_bytes:
        return replace(plan, bound_bytes=min(bound, plan.peak_bytes))
    order, peak = lead_with_inputs(graph, best.order), best.peak_bytes
    check_order(graph.problem, order, preserve)
    return replace(plan, order=order, peak_bytes=peak, bound_bytes=min(bound, peak), found_by="cp-sat")
