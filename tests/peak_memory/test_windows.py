"""Orders brought below a limit by moving little."""

from hypothesis import assume, given
from hypothesis import strategies as st

from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.best import judged, lower_to
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.problem import Kind, Node, Problem, Storage
from tests.peak_memory import SMALL
from tests.support.graphs import problems
from tests.support.oracle import all_orders, peak_by_definition


@SMALL
@given(problems(max_steps=5), st.integers(-2, 2))
def test_a_limit_is_met_wherever_an_order_meets_it(problem: Problem, above: int) -> None:
    assume(len(problem.nodes) <= 8)
    graph = memory_graph_of(problem, "none")
    start = judged(graph, graph.rest)
    assume(start.peak_node >= 0)
    limit = min(max(peak_by_definition(problem, list(order))) for order in all_orders(problem)) + above
    found, left = lower_to(graph, start, limit, 10**6)
    order = lead_with_inputs(graph, found.order)
    assert violation(problem, order) is None
    assert found.score[0] == max(peak_by_definition(problem, list(order)))
    assert (found.score[0] <= limit) == (above >= 0 or start.score[0] <= limit)
    assert left <= 10**6


def hills(count: int) -> Problem:
    """A chain of hills; at the middle one, what frees 4 bytes is listed behind what takes 6."""
    nodes, storages = [Node("x", Kind.INPUT, alloc=(0,))], [Storage(4)]
    for k in range(count):
        nodes.append(Node(f"step{k}", Kind.COMPUTE, deps=(len(nodes) - 1,), alloc=(len(storages),)))
        storages.append(Storage(6 if k == count // 2 else 5))
        if k == count // 2:
            nodes.append(Node("free", Kind.COMPUTE, deps=(0,), use=(0,)))
    return Problem("hills", tuple(nodes), tuple(storages))


def test_only_what_is_near_the_peak_moves() -> None:
    problem = hills(400)
    graph = memory_graph_of(problem)
    start = judged(graph, graph.rest)
    assert start.score == (10, 1)
    found, left = lower_to(graph, start, 9, 1000)
    assert found.score[0] == 9
    moved = [at for at, (a, b) in enumerate(zip(start.order, found.order, strict=True)) if a != b]
    assert 0 < len(moved) <= 64
    assert left > 900  # steps of the walk: not the whole graph
    assert lower_to(graph, start, 9, 0) == (start, 0)
