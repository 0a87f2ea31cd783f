"""A window of an order as a model for OR-tools' CP-SAT: its nodes in any order, all else where it is.

What lies behind the window is one line: the step is the largest of (what the window leaves + what follows from it),
over the compute stream's clock, each group's stream and each collective still to be waited for. These tails are exact,
as a replay adds and takes maxima, nothing else (no contention here).

Each node has an interval on one machine, a tick longer than its time, so that nodes without time have an order, too;
storages are intervals from the node that makes them to the last that uses them, which may not add up to more than is
left. An order's makespan grows by a tick a node, which the proven bound gives back.
"""

from math import floor
from typing import Any, NamedTuple

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Order, Problem

TICK_US = 0.1
WORKERS = 1
"""With more, the same work finds other orders each time."""


class Window(NamedTuple):
    """Positions of an order, the end excluded."""

    first: int
    end: int


def shortest(problem: Problem, order: Order, window: Window, limit_bytes: int, seconds: float) -> tuple[Order, float]:
    """The best order found that differs inside of the window alone, and a step in us that none of them beats.

    Args:
        problem: Without contention.
        order: Valid, within the limit.
        window: Where nodes may move.
        limit_bytes: No order may hold more at any node.
        seconds: Work, as the solver counts it.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    made = _Model(model, problem, order, window)
    made.precedence()
    made.memory(limit_bytes)
    made.streams()
    step = made.step()
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.max_deterministic_time = seconds
    status = solver.solve(model)
    now_us = replay(problem, order).step_us
    bound_us = made.us(solver.best_objective_bound)
    assert bound_us <= now_us, "the order given is one of those"
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return order, bound_us
    inside = sorted(made.nodes, key=lambda v: solver.value(made.at[v]))
    found = (*order[: window.first], *inside, *order[window.end :])
    return (found if replay(problem, found).step_us < now_us else order), bound_us


class _Model:
    def __init__(self, model: Any, problem: Problem, order: Order, window: Window) -> None:
        self.model, self.problem = model, problem
        self.before, self.nodes, self.behind = (
            order[: window.first], order[window.first : window.end], order[window.end :]
        )  # fmt: skip
        self.timeline = replay(problem, order)
        first = self.nodes[0]
        self.began_us = self.timeline.at_us[first]
        self.free_us = _free(problem, self.timeline, self.before)
        self.tails = _tails(problem, self.behind)
        spent = self.timeline.step_us - self.began_us
        self.horizon = self.ticks(2 * spent + sum(problem.nodes[v].time_us for v in self.nodes)) + 2 * len(self.nodes)
        self.at = {v: model.new_int_var(0, self.horizon, f"at {v}") for v in self.nodes}
        self.left = {v: self._left(v) for v in self.nodes}
        model.add_no_overlap([self._interval(self.at[v], self.left[v], f"on compute {v}") for v in self.nodes])
        for v in self.nodes:
            model.add_hint(self.at[v], self.ticks(self.timeline.at_us[v] - self.began_us))

    def _interval(self, start: Any, end: Any, name: str) -> Any:
        size = self.model.new_int_var(0, self.horizon, f"size {name}")
        return self.model.new_interval_var(start, size, end, name)

    def ticks(self, us: float) -> int:
        return floor(us / TICK_US)  # the bound stays one

    def us(self, ticks: float) -> float:
        """The step of a bound, with what the ticks of nodes without time have added taken off."""
        return self.began_us + ticks * TICK_US - len(self.nodes) * TICK_US

    def _left(self, v: int) -> Any:
        node = self.problem.nodes[v]
        if node.kind is Kind.WAIT:
            return self.model.new_int_var(0, self.horizon, f"left {v}")
        return self.at[v] + 1 + (0 if node.kind is Kind.COLLECTIVE else self.ticks(node.time_us))

    def precedence(self) -> None:
        """Every rule of the graph between two nodes of the window."""
        inside = set(self.nodes)
        for v in self.nodes:
            for u in self.problem.predecessors[v]:
                if u in inside:
                    self.model.add(self.at[v] >= self.left[u])

    def streams(self) -> None:
        """Collectives run one at a time, in the order of their launches; waits stand still until they are done."""
        nodes, model = self.problem.nodes, self.model
        self.done: dict[int, Any] = {}
        by_group: dict[str | None, list[int]] = {}
        start = {}
        for v in self.nodes:
            if nodes[v].kind is Kind.COLLECTIVE:
                start[v] = model.new_int_var(0, self.horizon, f"start {v}")
                model.add(start[v] >= self.at[v])
                model.add(start[v] >= self.ticks(self.free_us.get(nodes[v].group, 0.0) - self.began_us))
                self.done[v] = start[v] + self.ticks(nodes[v].time_us)
                by_group.setdefault(nodes[v].group, []).append(v)
        for mine in by_group.values():
            for i, u in enumerate(mine):
                for v in mine[i + 1 :]:
                    first = model.new_bool_var(f"{u} before {v}")
                    model.add(self.left[u] <= self.at[v]).only_enforce_if(first)
                    model.add(start[v] >= self.done[u]).only_enforce_if(first)
                    model.add(self.left[v] <= self.at[u]).only_enforce_if(first.negated())
                    model.add(start[u] >= self.done[v]).only_enforce_if(first.negated())
        self.by_group = by_group
        for v in self.nodes:
            if nodes[v].kind is Kind.WAIT:
                model.add(self.left[v] >= self.at[v] + 1)
                u = nodes[v].collective
                if u in self.done:
                    model.add(self.left[v] >= self.done[u])
                elif u is not None:
                    model.add(self.left[v] >= self.ticks(self.timeline.finish_us[u] - self.began_us))

    def step(self) -> Any:
        """The whole step, from what the window leaves behind."""
        model = self.model
        step = model.new_int_var(0, self.horizon, "step")
        for v in self.nodes:
            model.add(step >= self.left[v] + self.ticks(self.tails.clock_us))
        for group, mine in self.by_group.items():
            tail = self.ticks(self.tails.stream_us.get(group, 0.0))
            for v in mine:
                model.add(step >= self.done[v] + tail)
        for v, tail_us in self.tails.waited_us.items():
            if v in self.done:
                model.add(step >= self.done[v] + self.ticks(tail_us))
        fixed_us = max([
            0.0,
            *(self.free_us[g] + self.tails.stream_us.get(g, 0.0) for g in self.free_us),
            *(self.timeline.finish_us[v] + us for v, us in self.tails.waited_us.items() if v not in self.done),
        ])  # fmt: skip
        model.add(step >= self.ticks(fixed_us - self.began_us))
        return step

    def memory(self, limit_bytes: int) -> None:
        """What is made or last used in the window, beside what is live all through it."""
        problem, model = self.problem, self.model
        inside, behind = set(self.nodes), set(self.behind)
        users: dict[int, list[int]] = {}
        for v, node in enumerate(problem.nodes):
            for s in node.use:
                users.setdefault(s, []).append(v)
        always, intervals, sizes = 0, [], []
        for s, storage in enumerate(problem.storages):
            maker = problem.maker[s]
            is_input = problem.nodes[maker].kind is Kind.INPUT
            mine = [u for u in users.get(s, ()) if u in inside]
            made_here = maker in inside and not is_input
            made_before = is_input or maker not in inside | behind
            kept = (
                any(u in behind for u in users.get(s, ())) or (storage.pinned and s in users)
                or (s not in users and problem.nodes[maker].kind in (Kind.INPUT, Kind.OUTPUT))
            )  # fmt: skip
            if maker < 0 or not (made_here or made_before) or storage.bytes == 0:
                continue
            if made_before and kept:
                always += storage.bytes
                continue
            if made_before and not mine:
                continue  # gone by then
            start = self.at[maker] if made_here else 0
            if kept:
                end: Any = self.horizon
            else:
                end = model.new_int_var(0, self.horizon, f"end of {s}")
                for u in mine or [maker]:
                    model.add(end >= self.left[u])
            intervals.append(self._interval(start, end, f"storage {s}"))
            sizes.append(storage.bytes)
        model.add_cumulative(intervals, sizes, limit_bytes - always)


class _Tails(NamedTuple):
    clock_us: float
    stream_us: dict[str | None, float]
    waited_us: dict[int, float]


def _free(problem: Problem, timeline: Any, before: Order) -> dict[str | None, float]:
    free: dict[str | None, float] = {}
    for v in before:
        if problem.nodes[v].kind is Kind.COLLECTIVE:
            free[problem.nodes[v].group] = timeline.finish_us[v]
    return free


def _tails(problem: Problem, behind: Order) -> _Tails:
    """From the end: how long after each thing that the window leaves the step ends at the earliest."""
    clock, stream, waited = 0.0, dict[str | None, float](), dict[int, float]()
    done: dict[int, float] = {}
    for v in reversed(behind):
        node = problem.nodes[v]
        if node.kind is Kind.WAIT:
            if node.collective is not None:
                done[node.collective] = max(done.get(node.collective, 0.0), clock)
        elif node.kind is Kind.COLLECTIVE:
            tail = max(done.pop(v, 0.0), stream.get(node.group, 0.0)) + node.time_us
            stream[node.group] = tail
            clock = max(clock, tail)
        else:
            clock += node.time_us
    waited.update(done)
    return _Tails(clock, stream, waited)
