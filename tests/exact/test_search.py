"""Both exact solvers against brute force, from the words of the definitions."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given

from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.scheduler.beam_search import Beam, beam_search
from overlap_sched.scheduler.task import Reference
from tests.support.exact import cpsat
from tests.support.exact.graphs import SEEDS, small_graph
from tests.support.exact.search import TooLargeError, shortest_step
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import all_orders, peak_by_definition, step_by_definition

MOST_ORDERS = 400


def measured_orders(problem: Problem) -> list[tuple[int, float]]:
    """(peak, step) of every valid order; the graph is passed over where there are too many."""
    orders = list(islice(all_orders(problem), MOST_ORDERS + 1))
    assume(1 < len(orders) <= MOST_ORDERS)
    return [(max(peak_by_definition(problem, order)), step_by_definition(problem, order)) for order in orders]


def budgets(measured: list[tuple[int, float]]) -> tuple[int, ...]:
    """One that no order keeps, the least that some do, one between, one that all do."""
    peaks = sorted({peak for peak, _ in measured})
    return peaks[0] - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]


@examples(60)
@given(problems(max_steps=6))
def test_no_order_is_shorter_and_one_is_as_short(problem: Problem) -> None:
    measured = measured_orders(problem)
    for budget in budgets(measured):
        steps = [step for peak, step in measured if peak <= budget]
        found = shortest_step(problem, budget)
        if not steps:
            assert found is None
        else:
            assert found is not None
            assert found.step_us == min(steps)
            assert step_by_definition(problem, list(found.order)) == found.step_us
            assert max(peak_by_definition(problem, list(found.order))) <= budget


@pytest.mark.slow
@examples(15)
@given(problems(max_steps=5))
def test_constraints_say_the_same(problem: Problem) -> None:
    pytest.importorskip("ortools")
    measured = measured_orders(problem)
    for budget in budgets(measured):
        steps = [step for peak, step in measured if peak <= budget]
        found = cpsat.shortest_step(problem, budget)
        assert (None if found is None else found[0]) == min(steps, default=None)


@examples(30)
@given(problems(max_steps=5))
def test_what_can_be_reached_with_the_listed_order_to_fall_back_on(problem: Problem) -> None:
    orders = list(islice(all_orders(problem), MOST_ORDERS + 1))
    assume(1 < len(orders) <= MOST_ORDERS)
    listed = list(range(len(problem.nodes)))
    budget = max(peak_by_definition(problem, listed))
    steps = []
    for order in orders:
        prefixes = (order[:k] + [v for v in listed if v not in order[:k]] for k in range(len(order) + 1))
        if all(max(peak_by_definition(problem, prefix)) <= budget for prefix in prefixes):
            steps.append(step_by_definition(problem, order))
    found = shortest_step(problem, budget, completed_as_listed=True)
    assert found is not None
    assert found.step_us == min(steps)


def test_the_search_gives_up_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.exact.search.MOST_PATHS", 10)
    with pytest.raises(TooLargeError, match=r"^forward-0: more than 10 paths$"):
        shortest_step(small_graph(SEEDS[0]), 2**60)


def test_what_needs_a_launch_only_does_not_wait_for_its_stream() -> None:
    """`second` is launched behind `first`, which takes 1 us; `after` needs its launch only: 1 us in all."""
    nodes = (
        Node("first", Kind.COLLECTIVE, (), (), (), 1.0, "all_gather", "fsdp"),
        Node("view", Kind.COMPUTE, (0,)),
        Node("second", Kind.COLLECTIVE, (1,), (), (), 0.0, "all_gather", "fsdp"),
        Node("after", Kind.COMPUTE, (0, 1, 2), (), (), 1.0),
    )
    problem = Problem("launches", nodes, (), {"fsdp": Group(8, True)})
    found = shortest_step(problem, 0)
    assert found is not None
    assert found.step_us == 1.0
    reference = Reference(problem, problem.original_order)
    assert beam_search(reference, np.array(0), (), 1.5, Beam(8)).step_us == 1.0
