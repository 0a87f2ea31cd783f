"""Two orders of one problem: what moved is enough to turn one into the other, and all figures are the judges'."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.replay import replay
from overlap_sched.peak_memory.allocator.reserved import replay_allocator
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.problem.allocator_settings import EXPANDABLE, PLAIN, VARIABLES
from overlap_sched.report.diff.figures import Figure
from overlap_sched.report.diff.orders import ReplayedOrder, diff_orders, moved_nodes, total_us
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order

REORDERED = (0, 1, 2, 4, 3, 5, 6, 7, 8, 9)
"""Of the example: the matmul before the gather's wait."""
FILLED = (0, 1, 2, 4, 3, 6, 7, 5, 8, 9)
"""And the weight gradient before the other, with its reduce_scatter."""


def weight(problem: Problem, nodes: tuple[int, ...]) -> int:
    return sum(2 if problem.nodes[v].kind is Kind.COMPUTE and problem.nodes[v].time_us else 1 for v in nodes)


def test_the_example() -> None:
    diff = diff_orders(EXAMPLE, EXAMPLE.original_order, FILLED)
    names = [EXAMPLE.nodes[moved.collective].name for moved in diff.collectives]
    assert names == ["gather", "scatter"]  # 40 us less, then 30
    gather, scatter = diff.collectives
    assert (gather.launch, gather.wait, gather.exposed_us) == (False, True, -40.0)
    assert (gather.before.position, gather.before.wait_position, gather.before.cause) == (2, 3, "start")
    assert (gather.before.launch_us, gather.before.wait_us, gather.before.exposed_us) == (0.0, 0.0, 40.0)
    assert (gather.after.wait_position, gather.after.wait_us, gather.after.cause) == (4, 50.0, "nothing")
    assert (scatter.before.exposed_us, scatter.after.exposed_us, scatter.before.cause) == (40.0, 10.0, "tail")
    assert (scatter.after.position, scatter.after.launch_us, scatter.after.cause) == (6, 80.0, "tail")
    assert {EXAMPLE.nodes[v].name for v in diff.moved} == {"full", "dgrad"}
    assert total_us(diff.collectives) == -70.0
    step, exposed, gap, peak, *reserved = diff.figures
    assert step == Figure("step", "", 190.0, 120.0)
    assert exposed == Figure("exposed", "", 80.0, 10.0)
    assert gap.before == pytest.approx(100 * (190 / 120 - 1))
    assert gap.after == 0.0
    assert peak == Figure("peak", "", 21 * 2**20, 26 * 2**20)
    assert [figure.label() for figure in reserved] == ["reserved"]


def test_nothing_moved() -> None:
    diff = diff_orders(EXAMPLE, REORDERED, REORDERED)
    assert (diff.moved, diff.collectives) == (frozenset(), ())
    assert all(figure.change == 0.0 for figure in diff.figures)


def test_compute_stays_where_a_launch_can_move_instead() -> None:
    """The launch passes one matmul: either could be said to have moved."""
    nodes = (
        Node("mm", Kind.COMPUTE, time_us=5.0),
        Node("gather", Kind.COLLECTIVE, (), (), (), 10.0, "all_gather", "fsdp"),
        Node("full", Kind.WAIT, (1,), collective=1),
    )
    problem = Problem("passing", nodes, (), EXAMPLE.groups)
    for before, after in (((0, 1, 2), (1, 0, 2)), ((1, 0, 2), (0, 1, 2))):
        assert moved_nodes(problem, before, after) == {1}


@examples(60)
@given(problems(max_steps=6), st.integers(0, 9), st.integers(10, 19))
def test_what_moved_is_enough_and_the_least(problem: Problem, one: int, other: int) -> None:
    before, after = random_order(problem, one), random_order(problem, other)
    moved = moved_nodes(problem, before, after)
    assert [v for v in before if v not in moved] == [v for v in after if v not in moved]
    if len(before) <= 12:
        heaviest = max(
            weight(problem, kept)
            for size in range(len(before) + 1)
            for kept in combinations(before, size)
            if [v for v in after if v in kept] == list(kept)
        )
        assert weight(problem, tuple(v for v in before if v not in moved)) == heaviest


@examples(60)
@given(problems(), st.integers(0, 9), st.integers(10, 19))
def test_figures_are_those_of_the_judges(problem: Problem, one: int, other: int) -> None:
    orders = [tuple(random_order(problem, seed)) for seed in (one, other)]
    diff = diff_orders(problem, *orders)
    figures = {figure.label(): figure for figure in diff.figures}
    runs = [replay(problem, order) for order in orders]
    assert figures["step"] == Figure("step", "", *(run.step_us for run in runs))
    assert figures["exposed"] == Figure("exposed", "", *(run.exposed_us for run in runs))
    assert figures["peak"] == Figure("peak", "", *(peak_memory(problem, order)[0] for order in orders))
    assert ("reserved" in figures) == (problem.memory_model == "runtime")
    if problem.memory_model == "runtime":
        reserved = (replay_allocator(problem, order, PLAIN).reserved_bytes for order in orders)
        assert figures["reserved"] == Figure("reserved", "", *reserved)
    noise_us = 1e-8 * max(run.step_us for run in runs)
    stalls = [sum(run.stall_us[w] for ws in problem.waits.values() for w in ws) for run in runs]
    assert total_us(diff.collectives) == pytest.approx(stalls[1] - stalls[0], abs=noise_us * len(problem.nodes))
    changes = [abs(moved.exposed_us) for moved in diff.collectives]
    assert changes == sorted(changes, reverse=True)
    for order in orders:
        placed = ReplayedOrder(problem, order)
        assert all((place.exposed_us > 0) == (place.cause != "nothing") for place in placed.places.values())


def test_an_allocator_that_the_environment_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "expandable_segments:True")
    diff = diff_orders(EXAMPLE, EXAMPLE.original_order, REORDERED)
    both = (replay_allocator(EXAMPLE, one, EXPANDABLE).reserved_bytes for one in (EXAMPLE.original_order, REORDERED))
    assert diff.figures[-1] == Figure("reserved", "", *both)


def test_of_several_waits_the_first_counts_and_any_may_move() -> None:
    nodes = (
        Node("launch", Kind.COLLECTIVE, (), (), (), 10.0, "all_gather", "fsdp"),
        Node("mm", Kind.COMPUTE, time_us=4.0),
        Node("one", Kind.WAIT, (0,), collective=0),
        Node("other", Kind.WAIT, (0,), collective=0),
    )
    diff = diff_orders(Problem("two waits", nodes, (), EXAMPLE.groups), (0, 1, 2, 3), (0, 2, 1, 3))
    (moved,) = diff.collectives
    assert (diff.moved, moved.launch, moved.wait) == ({2}, False, True)
    assert (moved.before.wait_position, moved.before.wait_us, moved.before.exposed_us) == (2, 4.0, 6.0)
    assert (moved.after.wait_position, moved.after.wait_us, moved.after.exposed_us) == (1, 0.0, 10.0)
    assert (moved.before.cause, moved.after.cause) == ("tail", "start")


def test_rounding_does_not_make_a_change_the_largest() -> None:
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1; then the larger shift is first."""
    short, long = (
        Node(name, Kind.COLLECTIVE, (), (), (), 1.0, "", group) for name, group in (("c1", "a"), ("c2", "b"))
    )
    views = (Node("z1", Kind.COMPUTE), Node("z2", Kind.COMPUTE))
    compute = (Node(f"mm{us}", Kind.COMPUTE, time_us=us) for us in (0.1, 0.2, 0.3))
    nodes = (short, *views, *compute, Node("w", Kind.WAIT, (0,), collective=0), long)
    problem = Problem("sums", nodes, (), dict.fromkeys("ab", Group(8, intra_node=True)))
    diff = diff_orders(problem, problem.original_order, (7, 1, 2, 0, 5, 4, 3, 6))
    assert [problem.nodes[moved.collective].name for moved in diff.collectives] == ["c2", "c1"]
    (short_one,) = diff.collectives[1:]
    assert short_one.after.exposed_us != short_one.before.exposed_us
    assert short_one.exposed_us == 0.0
