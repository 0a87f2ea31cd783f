"""The same optimum by another road: constraints, written down from the definitions, for OR-tools' CP-SAT.

Who comes before whom is one Boolean per pair of nodes; the clock, the streams and what is live at each step follow
from these alone. Nothing is shared with :mod:`tests.support.exact.search`, which walks through sets of nodes instead.
Times must be whole microseconds.
"""

from typing import Any

from overlap_sched.problem import Kind, Problem

DETERMINISTIC_TIME = 60.0
"""What the solver may spend, in its own count of work (about a second each, the same on every machine)."""


class NotSolvedError(Exception):
    """The solver's count of work was used up before it had proved an optimum."""


def shortest_step(problem: Problem, limit_bytes: int) -> tuple[float, tuple[int, ...]] | None:
    """The optimum and an order that has it, or ``None`` where no valid order stays within the limit.

    Raises:
        NotSolvedError: Neither was proved with the work allowed.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    before = _orders(model, problem)
    step = _times(model, problem, before)
    _memory(model, problem, before, limit_bytes)
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = DETERMINISTIC_TIME
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    if status != cp_model.OPTIMAL:
        raise NotSolvedError(f"{problem.name}: {solver.status_name(status)} after {DETERMINISTIC_TIME}")
    n = len(problem.nodes)
    place = [sum(solver.boolean_value(before[u, v]) for u in range(n) if u != v) for v in range(n)]
    return solver.objective_value, tuple(sorted(range(n), key=place.__getitem__))


def _orders(model: Any, problem: Problem) -> dict[tuple[int, int], Any]:
    """``before[u, v]`` for every pair: one of two, a permutation, every rule of the graph."""
    nodes = problem.nodes
    n = len(nodes)
    place = [model.new_int_var(0, n - 1, f"place {v}") for v in range(n)]
    model.add_all_different(place)
    before = {}
    for u in range(n):
        for v in range(u + 1, n):
            first = model.new_bool_var(f"{u} before {v}")
            before[u, v], before[v, u] = first, first.negated()
            model.add(place[u] < place[v]).only_enforce_if(first)
            model.add(place[v] < place[u]).only_enforce_if(first.negated())
    maker = {s: v for v, node in enumerate(nodes) for s in node.alloc}
    for v, node in enumerate(nodes):
        earlier = {*node.deps, *(maker[s] for s in node.use), *({node.collective} - {None})} - {v}
        if node.kind is Kind.OUTPUT:
            earlier |= set(range(v))
        for u in earlier:
            model.add(before[u, v] == 1)
    return before


def _times(model: Any, problem: Problem, before: dict[tuple[int, int], Any]) -> Any:
    """The step: each stream does one thing at a time, in the order given; waits stand still."""
    nodes = problem.nodes
    horizon = int(sum(node.time_us for node in nodes))
    at = [model.new_int_var(0, horizon, f"at {v}") for v in range(len(nodes))]
    left, done = [], {}  # when the compute stream leaves a node; when a collective ends on its own
    for v, node in enumerate(nodes):
        us = int(node.time_us)
        assert us == node.time_us, "times in whole microseconds"
        if node.kind is Kind.COLLECTIVE:
            start = model.new_int_var(0, horizon, f"start {v}")
            model.add(start >= at[v])
            done[v] = start + us
            left.append(at[v])
            for u in done:
                if u != v and nodes[u].group == node.group:
                    model.add(start >= done[u]).only_enforce_if(before[u, v])
                    model.add(done[u] - int(nodes[u].time_us) >= done[v]).only_enforce_if(before[v, u])
        elif node.kind is Kind.WAIT:
            end = model.new_int_var(0, horizon, f"end {v}")
            model.add(end >= at[v])
            left.append(end)
        else:
            left.append(at[v] + us)
    for v, node in enumerate(nodes):
        if node.collective is not None:
            model.add(left[v] >= done[node.collective])
        for u in range(len(nodes)):
            if u != v:
                model.add(at[v] >= left[u]).only_enforce_if(before[u, v])
    step = model.new_int_var(0, horizon, "step")
    for end in (*left, *done.values()):
        model.add(step >= end)
    return step


def _memory(model: Any, problem: Problem, before: dict[tuple[int, int], Any], limit_bytes: int) -> None:
    """At each step, what is allocated and has a use to come (this one included) fits."""
    nodes = problem.nodes
    maker = {s: v for v, node in enumerate(nodes) for s in node.alloc}
    live: list[list[tuple[int, Any]]] = [[] for _ in nodes]  # per step: (bytes, Boolean or 1)
    for s, v in maker.items():
        size, pinned = problem.storages[s]
        kind = nodes[v].kind
        users = [u for u, node in enumerate(nodes) if s in node.use]
        to_the_end = pinned if users else kind in (Kind.INPUT, Kind.OUTPUT)
        for w in range(len(nodes)):
            there = 1 if w == v or kind is Kind.INPUT else before[v, w]
            needed = [1] if to_the_end or w == v or w in users else [before[w, u] for u in users]
            if not needed:
                continue
            is_live = model.new_bool_var(f"{s} at {w}")
            for need in needed:
                model.add(is_live >= there + need - 1)
            live[w].append((size, is_live))
    for w in range(len(nodes)):
        model.add(sum(size * is_live for size, is_live in live[w]) <= limit_bytes)
