"""The frontier: never a longer step for more memory, every point an order that the judges measure so."""

import pytest
from hypothesis import given, settings

from overlap_sched import EXAMPLE, Options
from overlap_sched.analysis.frontier import frontier
from overlap_sched.analysis.frontier_points import Frontier
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Kind, Problem
from tests.support.exact.graphs import small_graph
from tests.support.exact.search import shortest_step
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition, step_by_definition

MIB = 2**20


@pytest.fixture(scope="module")
def example() -> Frontier:
    return frontier(EXAMPLE)


def check(problem: Problem, found: Frontier) -> None:
    peaks, steps = ([getattr(point, name) for point in found.points] for name in ("peak_bytes", "step_us"))
    assert peaks == sorted(set(peaks))
    assert steps == sorted(set(steps), reverse=True)
    assert peaks[0] <= found.original.peak_bytes
    assert steps[-1] <= found.original.step_us * (1 + 1e-9)
    assert found.floor_bytes <= peaks[0]
    assert found.bound_us <= steps[-1] * (1 + 1e-9)
    for point in (found.original, *found.points):
        assert violation(problem, point.order) is None
        assert max(peak_by_definition(problem, list(point.order))) == point.peak_bytes
        assert step_by_definition(problem, list(point.order)) == pytest.approx(point.step_us)


def test_of_the_example(example: Frontier) -> None:
    check(EXAMPLE, example)
    assert [(point.peak_bytes // MIB, point.step_us) for point in example.points] == [(18, 190), (21, 150), (26, 120)]
    assert (example.bound_us, example.floor_bytes // MIB) == (120.0, 18)


@settings(max_examples=20)
@given(problems())
def test_more_memory_is_never_a_longer_step(problem: Problem) -> None:
    found = frontier(problem, budgets=5)
    check(problem, found)
    assert found.budgets <= 5
    limits = [point.peak_bytes + extra for point in found.points for extra in (0, 1)]
    steps = [found.within(limit).step_us for limit in limits]
    assert steps == sorted(steps, reverse=True)
    assert found == frontier(problem, budgets=5)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 6])
def test_no_point_is_better_than_the_optimum_within_its_peak(seed: int) -> None:
    problem = small_graph(seed)
    found = frontier(problem, budgets=6)
    for point in found.points:
        optimum = shortest_step(problem, point.peak_bytes)
        assert optimum is not None
        assert optimum.step_us <= point.step_us
    assert shortest_step(problem, found.floor_bytes - 1) is None


def test_budgets_are_tried_where_most_is_unknown_and_no_more_than_asked() -> None:
    told: list[str] = []
    problem = small_graph(6)
    few = frontier(problem, budgets=3, tell=told.append)
    assert (few.budgets, len(told)) == (3, 4)  # and one line on the lowest peak
    assert told[0] == "looking for the lowest peak"
    assert told[1] == "budget 1: no limit"
    many = frontier(problem, budgets=9)
    assert 3 < many.budgets <= 9
    assert all(many.within(point.peak_bytes).step_us <= point.step_us for point in few.points)


def test_a_limit_and_a_target_are_looked_at_closely() -> None:
    problem = small_graph(6)
    coarse = frontier(problem, budgets=3)
    limit = coarse.points[-1].peak_bytes - 1
    assert frontier(problem, budgets=3, limit_bytes=limit).budgets == 4
    target = coarse.points[-1].step_us
    close = frontier(problem, budgets=3, target_us=target)
    assert close.budgets > 3
    assert close.no_longer_than(target).peak_bytes <= coarse.no_longer_than(target).peak_bytes


def test_launch_orders_are_kept_where_asked() -> None:
    problem = small_graph(5)
    for point in frontier(problem, Options(preserve_collective_order="all"), budgets=5).points:
        launched = [v for v in point.order if problem.nodes[v].kind is Kind.COLLECTIVE]
        assert launched == sorted(launched)


def test_what_does_not_fit_is_said(example: Frontier) -> None:
    with pytest.raises(UnreachableError) as error:
        example.within(18 * MIB - 1)
    assert str(error.value) == (
        "'example' does not fit into 18.0 MiB: no order can: some step has at least 18.0 MiB live. "
        "Recompute more, shard over more ranks, or give it more memory."
    )
    found = frontier(EXAMPLE, Options(preserve_collective_order="all"))
    unproven = Frontier(found.problem, found.original, found.points[-1:], found.bound_us, 0, 3)
    with pytest.raises(UnreachableError) as error:
        unproven.within(20 * MIB)
    assert str(error.value) == (
        "'example' does not fit into 20.0 MiB: the lowest peak found is 26.0 MiB, 6.0 MiB above it. "
        "Recompute more, shard over more ranks, or give it more memory."
    )


def test_what_is_too_fast_is_said(example: Frontier) -> None:
    with pytest.raises(UnreachableError) as error:
        example.no_longer_than(119.9)
    assert str(error.value) == (
        "'example' cannot be done in 119.9 us: no order can be shorter than 120.0 us, whatever memory it is given. "
        "Ask for a longer step, or mend what it waits for: a faster network, less to send."
    )
    slow = Frontier(EXAMPLE, example.original, example.points[:1], 120.0, example.floor_bytes, 3)
    with pytest.raises(UnreachableError) as error:
        slow.no_longer_than(150.0)
    assert str(error.value) == (
        "'example' cannot be done in 150.0 us: the shortest step found takes 190.0 us, with a peak of 18.0 MiB. "
        "Ask for a longer step, or mend what it waits for: a faster network, less to send."
    )


def test_three_budgets_at_least() -> None:
    with pytest.raises(OptionsError) as error:
        frontier(EXAMPLE, budgets=2)
    assert str(error.value) == "budgets is 2; it is 3 or more: the lowest, the original and no limit."
