"""What is predicted of a graph by a calibration: all its nodes priced anew, its order replayed.

Kernels can be priced by the *stretches* of a step that has run in torch's order: what the thread took from one
communication to the next. A stretch has its kernels with the caches of a step, and what Python does between them. It is
divided among its nodes in proportion to their prices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from overlap_sched.cost import Collective, Compute
from overlap_sched.cost.measured.tabled import TableModel
from overlap_sched.fx.company import launch_times, with_launches
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Node, Order, Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.node import FINISH, LAUNCH, OF_HOST


class Predicted(NamedTuple):
    """Microseconds: of the step, of it exposed, and of all nodes by kind."""

    step_us: float
    exposed_us: float
    compute_us: float
    launch_us: float
    collective_us: float


def repriced(
    problem: Problem, order: Order, model: TableModel, kernels_us: Mapping[str, float] | None = None
) -> tuple[Problem, Order]:
    """The same graph and order with times by ``model``, launch nodes, and the contention that was measured with it.

    Args:
        problem: The graph.
        order: Of its nodes.
        model: By calibration.
        kernels_us: Times of nodes by name that count instead, see :func:`stretched`.
    """
    known_us = kernels_us or {}
    nodes = [_repriced(problem, v, node, model) for v, node in enumerate(problem.nodes)]
    nodes = [node._replace(time_us=known_us.get(node.name, node.time_us)) for node in nodes]
    known = any(node.op in OF_HOST for node in nodes)
    with_them, stands_for = with_launches(nodes, {} if known else launch_times(nodes, problem.groups, model))
    ids: list[list[int]] = [[] for _ in nodes]
    for new, old in enumerate(stands_for):
        ids[old].append(new)
    priced = replace(problem, nodes=with_them, contention=NO_CONTENTION)
    return priced, tuple(new for v in order for new in ids[v])


def stretched(
    problems: Sequence[Problem], model: TableModel, stretches_us: Sequence[float]
) -> list[Mapping[str, float]]:
    """Per graph the times of its kernels, by name, by the stretches of a step.

    Args:
        problems: Graphs in the order in which they run, each in its original order.
        model: Prices the parts of a stretch.
        stretches_us: Of one step, what passed from each communication (or the beginning of a graph) to the next.

    Raises:
        ValueError: The step has other communications than the graphs.
    """
    found: list[Mapping[str, float]] = []
    parts = [_stretches(repriced(problem, problem.original_order, model)[0]) for problem in problems]
    if sum(map(len, parts)) != len(stretches_us):
        raise ValueError(f"a step of {len(stretches_us)} stretches, graphs of {sum(map(len, parts))}")
    measured = iter(stretches_us)
    for part in parts:
        times: dict[str, float] = {}
        for nodes in part:
            took_us, total_us = next(measured), sum(node.time_us for node in nodes)
            times |= {node.name: node.time_us * took_us / total_us for node in nodes if total_us > 0.0}
        found.append(times)
    return found


def _stretches(problem: Problem) -> list[list[Node]]:
    """Kernels between communications, in the original order."""
    parts: list[list[Node]] = [[]]
    for node in problem.nodes:
        if node.kind in (Kind.COLLECTIVE, Kind.WAIT):
            parts.append([])
        elif node.kind is Kind.COMPUTE and node.op not in OF_HOST:
            parts[-1].append(node)
    return parts


def predicted(problem: Problem, order: Order) -> Predicted:
    """The replay of an order; what a wait takes that has nothing to wait for is exposed, too: so it is measured."""
    run = replay(problem, order)
    times = {Kind.COMPUTE: 0.0, Kind.COLLECTIVE: 0.0}
    launch_us, finish_us = (sum(node.time_us for node in problem.nodes if node.op == op) for op in OF_HOST)
    for node in problem.nodes:
        if node.kind in times:
            times[node.kind] += node.time_us
    compute_us = times[Kind.COMPUTE] - launch_us - finish_us
    return Predicted(run.step_us, run.exposed_us + finish_us, compute_us, launch_us, times[Kind.COLLECTIVE])


def total(parts: list[Predicted]) -> Predicted:
    """Graphs that run one after the other."""
    return Predicted(*(sum(values) for values in zip(*parts, strict=True)))


def _repriced(problem: Problem, v: int, node: Node, model: TableModel) -> Node:
    if node.kind is Kind.COLLECTIVE:
        return node._replace(time_us=model.collective_us(_work(problem, node)))
    if node.op == LAUNCH:  # its collective stands behind it
        return node._replace(time_us=model.launch_us(_work(problem, problem.nodes[v + 1])))
    if node.op == FINISH:  # and the wait here
        return node._replace(time_us=model.finish_us(_work(problem, _awaited(problem, v + 1))))
    if node.kind is Kind.COMPUTE:
        op = node.op.rpartition("+")[2] if node.flops else node.op  # of an extern kernel's origins the last is itself
        return node._replace(time_us=model.compute_us(Compute(op, node.flops, node.bytes)))
    return node


def _awaited(problem: Problem, wait: int) -> Node:
    collective = problem.nodes[wait].collective
    if collective is None:
        raise ValueError(f"{problem.nodes[wait].name} has a finish node, but waits for nothing of this graph")
    return problem.nodes[collective]


def _work(problem: Problem, node: Node) -> Collective:
    return Collective(node.op, node.bytes, problem.groups[node.group or ""])
