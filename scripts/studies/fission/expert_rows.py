"""Steps with experts in parts of their tokens: what of their all_to_all is exposed, whole and in parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from overlap_sched.cost import Roofline
from overlap_sched.fit import fit
from overlap_sched.judge.validate import measure
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.scheduler.driver import phases, schedule
from overlap_sched.scheduler.task import Task
from overlap_sched.transform.apply import apply
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices

ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True)
class ExpertRow:
    """One way to run a step; simulated.

    Attributes:
        graph: Which. way: how it is run. nodes: of the graph then.
        step_us, compute_us: The step; and all compute.
        all_to_all_us, other_us: What the compute stream stands still for, at waits for these and for other collectives.
        peak_bytes: Live at once.
    """

    graph: str
    way: str
    nodes: int
    step_us: float
    compute_us: float
    all_to_all_us: float
    other_us: float
    peak_bytes: int


def expert_rows(problem: Problem, fissions: Sequence[Fission], comm_scale: float, within: bool) -> Iterator[ExpertRow]:
    """The step as it is, in its best order, and in parts.

    Args:
        problem: The step, at its own prices.
        fissions: Ways to run it in parts.
        comm_scale: Every collective takes so many times as long.
        within: Also in parts within the original peak, with what :func:`overlap_sched.fit.fit` finds for that.
    """
    problem = _scaled(problem, comm_scale)
    prices, peak_bytes = Prices(Roofline(), comm_scale), max(measure(problem, problem.original_order).profile)
    yield _row(problem, problem.original_order, "original order", problem.name)
    yield _row(problem, schedule(problem, Options()).order, "best order", problem.name)
    for one in fissions:
        after = apply(problem, [one], prices)
        yield _row(after, _best_order(after), f"{one.parts} parts of {len(one.nodes):,} nodes", problem.name)
    if within:
        for one in fissions:
            found = fit(problem, prices, memory_limit=peak_bytes, fissions=[one], effort=1)
            rewrites = len(found.best.rewrites)
            way = f"fit within the peak, {one.parts} parts of {len(one.nodes):,} nodes: {rewrites} rewrites"
            yield _row(found.best.problem, found.best.order, way, problem.name)


def _best_order(problem: Problem) -> Order:
    """All phases of the scheduler, from the order in which the parts are emitted, at its own peak."""
    start = problem.original_order
    task = Task(problem, Options(base="original"), max(measure(problem, start).profile))
    return phases(task, start, task.measured(start)).order


def _scaled(problem: Problem, scale: float) -> Problem:
    nodes = (n._replace(time_us=n.time_us * scale) if n.kind is Kind.COLLECTIVE else n for n in problem.nodes)
    return replace(problem, nodes=tuple(nodes))


def _row(problem: Problem, order: Order, way: str, graph: str) -> ExpertRow:
    measured, nodes = measure(problem, order), problem.nodes
    stalls = {True: 0.0, False: 0.0}
    for node, us in zip(nodes, measured.timeline.stall_us, strict=True):
        collective = node.collective
        stalls[collective is not None and ALL_TO_ALL in nodes[collective].op] += us
    step_us, compute_us = measured.timeline.step_us, sum(problem.compute_us)
    return ExpertRow(graph, way, len(nodes), step_us, compute_us, stalls[True], stalls[False], max(measured.profile))
