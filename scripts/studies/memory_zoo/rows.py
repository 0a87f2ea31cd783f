"""Measure one graph for the memory tables."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from overlap_sched.fit.planner import relabelled
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.peak_memory.addresses import plan_addresses
from overlap_sched.peak_memory.best import ORDERS, best_order, judged, window_at_peak
from overlap_sched.peak_memory.exact import Solver, program_of, solve
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.problem import MemoryModel, Problem
from overlap_sched.scheduler.driver import schedule
from overlap_sched.simulate.allocator import replay_allocator

T = TypeVar("T")
NO_LIMIT = 1e6
"""Of effort: the clock ends the search here."""
SOLVERS: tuple[Solver, ...] = ("cp-sat", "highs")


@dataclass(frozen=True)
class ZooRow:
    """One graph; bytes, seconds; peaks in the ``runtime`` model, all simulated.

    Attributes:
        model: Its name. batch: the batch size. update: whether the step ends with SGD.
        nodes: Of the graph.
        original_bytes: Peak of the order as traced. lpmf_bytes, bfs_bytes, dfs_bytes: of torch's three orders.
        peak_bytes: Of ours. bound_bytes: no order's peak is lower. found_by: what found ours.
        arena_bytes: One arena for our order, aligned to 512 bytes. fragmentation: the part of it above the peak.
        original_reserved_bytes, reserved_bytes: What torch's allocator reserves for the original order and for ours.
        order_s, addresses_s: Processor time of both searches.
    """

    model: str
    batch: int
    update: bool
    nodes: int
    original_bytes: int
    lpmf_bytes: int
    bfs_bytes: int
    dfs_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str
    arena_bytes: int
    fragmentation: float
    original_reserved_bytes: int
    reserved_bytes: int
    order_s: float
    addresses_s: float

    @property
    def saved_percent(self) -> float:
        """Of the original peak."""
        return 100 * (1 - self.peak_bytes / self.original_bytes)

    @property
    def gap_percent(self) -> float:
        """How far ours is above the bound at most."""
        return 100 * (self.peak_bytes / self.bound_bytes - 1)


def zoo_row(model: str, batch: int, update: bool, problem: Problem) -> ZooRow:
    """All figures of one step."""
    graph = memory_graph_of(problem, "group")
    torch_peaks = {
        name: peak_memory(problem, lead_with_inputs(graph, ORDERS[name](graph)))[0] for name in ("lpmf", "bfs", "dfs")
    }
    plan, order_s = timed(lambda: best_order(problem, "group"))
    addresses, addresses_s = timed(lambda: plan_addresses(problem, plan.order))
    return ZooRow(
        model=model,
        batch=batch,
        update=update,
        nodes=len(problem.nodes),
        original_bytes=plan.original_bytes,
        lpmf_bytes=torch_peaks["lpmf"],
        bfs_bytes=torch_peaks["bfs"],
        dfs_bytes=torch_peaks["dfs"],
        peak_bytes=plan.peak_bytes,
        bound_bytes=plan.bound_bytes,
        found_by=plan.found_by,
        arena_bytes=addresses.arena_bytes,
        fragmentation=addresses.fragmentation,
        original_reserved_bytes=replay_allocator(problem, problem.original_order).reserved_bytes,
        reserved_bytes=replay_allocator(problem, plan.order).reserved_bytes,
        order_s=order_s,
        addresses_s=addresses_s,
    )


@dataclass(frozen=True)
class CollectiveRow:
    """A graph with collectives: its lowest peak, and what overlap costs or gains from there; simulated.

    Attributes:
        graph: Its name. memory_model: in which it is counted. nodes: how many.
        original_bytes, peak_bytes, bound_bytes, found_by, order_s: As in :class:`ZooRow`.
        simple_s: Processor time of all the simple orders together, without judging them.
        original_us: Step of the original order.
        step_us: Step scheduled from the original order, within its peak. scheduled_bytes: the peak then.
        base_step_us: Step scheduled from the order with the lowest peak, within the original's peak.
        base_bytes: The peak then.
        tight_step_us: The same, within the lowest peak.
    """

    graph: str
    memory_model: MemoryModel
    nodes: int
    original_bytes: int
    peak_bytes: int
    bound_bytes: int
    found_by: str
    order_s: float
    simple_s: float
    original_us: float
    step_us: float
    scheduled_bytes: int
    base_step_us: float
    base_bytes: int
    tight_step_us: float


def collective_row(problem: Problem) -> CollectiveRow:
    """All figures of one graph; launch orders as free as the scheduler's own default leaves them."""
    plan, order_s = timed(lambda: best_order(problem, "none"))
    model = problem.memory_model
    graph = memory_graph_of(problem, "none")
    _, simple_s = timed(lambda: [make(graph) for make in ORDERS.values()])
    plain = schedule(problem, Options(memory_model=model))
    base = relabelled(problem, plan.order)
    room = plan.original_bytes - plan.peak_bytes
    loose = schedule(base, Options(memory_model=model, headroom=room))
    tight = schedule(base, Options(memory_model=model))
    return CollectiveRow(
        graph=problem.name,
        memory_model=model,
        nodes=len(problem.nodes),
        original_bytes=plan.original_bytes,
        peak_bytes=plan.peak_bytes,
        bound_bytes=plan.bound_bytes,
        found_by=plan.found_by,
        order_s=order_s,
        simple_s=simple_s,
        original_us=plain.original.step_us,
        step_us=plain.scheduled.step_us,
        scheduled_bytes=plain.scheduled.peak_bytes,
        base_step_us=loose.scheduled.step_us,
        base_bytes=loose.scheduled.peak_bytes,
        tight_step_us=tight.scheduled.step_us,
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work returns, and the processor seconds of this process that it took: others' load is not in them."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


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
    """CP-SAT and HiGHS on the same programs: windows of about these lengths around the peak of the original order."""
    graph = memory_graph_of(problem, "group")
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
