"""What is predicted of a graph by a calibration: all its nodes priced anew, its order replayed."""

from dataclasses import replace
from typing import NamedTuple

from overlap_sched.cost import Collective, Compute
from overlap_sched.cost.tabled import TableModel
from overlap_sched.fx.launches import LAUNCH, launch_times, with_launches
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Node, Order, Problem
from overlap_sched.problem.contention import Contention


class Predicted(NamedTuple):
    """Microseconds: of the step, of it exposed, and of all nodes by kind."""

    step_us: float
    exposed_us: float
    compute_us: float
    launch_us: float
    collective_us: float


def repriced(problem: Problem, order: Order, model: TableModel) -> tuple[Problem, Order]:
    """The same graph and order with times by ``model``, launch nodes, and the contention that was measured with it."""
    nodes = [_repriced(problem, v, node, model) for v, node in enumerate(problem.nodes)]
    known = any(node.op == LAUNCH for node in nodes)
    with_them, stands_for = with_launches(nodes, {} if known else launch_times(nodes, problem.groups, model))
    ids: list[list[int]] = [[] for _ in nodes]
    for new, old in enumerate(stands_for):
        ids[old].append(new)
    slowdown = {one.kind: one.factor for one in model.tables.slowdowns}
    priced = replace(problem, nodes=with_them, contention=Contention(slowdown))
    return priced, tuple(new for v in order for new in ids[v])


def predicted(problem: Problem, order: Order) -> Predicted:
    """The replay of an order."""
    run = replay(problem, order)
    times = {Kind.COMPUTE: 0.0, Kind.COLLECTIVE: 0.0}
    launch_us = sum(node.time_us for node in problem.nodes if node.op == LAUNCH)
    for node in problem.nodes:
        if node.kind in times:
            times[node.kind] += node.time_us
    compute_us = times[Kind.COMPUTE] - launch_us
    return Predicted(run.step_us, run.exposed_us, compute_us, launch_us, times[Kind.COLLECTIVE])


def total(parts: list[Predicted]) -> Predicted:
    """Graphs that run one after the other."""
    return Predicted(*(sum(values) for values in zip(*parts, strict=True)))


def _repriced(problem: Problem, v: int, node: Node, model: TableModel) -> Node:
    if node.kind is Kind.COLLECTIVE:
        return node._replace(time_us=model.collective_us(_work(problem, node)))
    if node.op == LAUNCH:  # its collective stands behind it
        return node._replace(time_us=model.launch_us(_work(problem, problem.nodes[v + 1])))
    if node.kind is Kind.COMPUTE:
        op = node.op.rpartition("+")[2] if node.flops else node.op  # of an extern kernel's origins the last is itself
        return node._replace(time_us=model.compute_us(Compute(op, node.flops, node.bytes)))
    return node


def _work(problem: Problem, node: Node) -> Collective:
    return Collective(node.op, node.bytes, problem.groups[node.group or ""])
