"""The scheduler against the true optimum: committed figures that may only become better."""

import json

import pytest

from overlap_sched import read_problem
from overlap_sched.scheduler.driver import schedule
from tests.support.exact import cpsat
from tests.support.exact.graphs import FAMILIES, SEEDS, small_graph, small_graphs
from tests.support.exact.search import shortest_step
from tests.support.exact.table import DATA, Row, measure, read_golden, summary
from tests.support.oracle import peak_by_definition, step_by_definition

pytestmark = pytest.mark.slow  # one measurement of all graphs, three seconds
HARD = json.loads((DATA / "hard" / "optimal.json").read_text())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [measure(problem) for problem in small_graphs()]


def test_optima_are_those_of_the_file(rows: list[Row]) -> None:
    assert {row.name: row.optimal_us for row in rows} == read_golden().optimal_us


def test_gaps_to_the_optimum_do_not_grow(rows: list[Row]) -> None:
    golden, now = read_golden(), summary(rows)
    assert now.mean_percent <= golden.mean_percent
    assert now.worst_percent <= golden.worst_percent


def test_nothing_is_better_than_the_optimum(rows: list[Row]) -> None:
    for row in rows:
        assert row.optimal_us <= row.reachable_us <= row.original_us
        assert row.optimal_us <= row.scheduled_us <= row.original_us


def test_graphs_are_many_kinds_and_memory_binds(rows: list[Row]) -> None:
    """In many graphs the optimum would be shorter with more memory, and the original order is far from it."""
    assert len(rows) == len(SEEDS) == 300
    assert max(row.nodes for row in rows) == 25
    unlimited = [shortest_step(problem, 2**60) for problem in map(small_graph, SEEDS[:50])]
    bound = sum(free is not None and free.step_us < row.optimal_us for free, row in zip(unlimited, rows, strict=False))
    assert bound >= 10
    for family in FAMILIES:
        assert summary([row for row in rows if row.name.startswith(family)]).original_percent > 10


@pytest.mark.parametrize("seed", SEEDS[::12])
def test_a_second_solver_agrees(seed: int) -> None:
    pytest.importorskip("ortools")
    problem = small_graph(seed)
    budget = max(peak_by_definition(problem, list(problem.original_order)))
    found = cpsat.shortest_step(problem, budget)
    assert found is not None
    step_us, order = found
    assert step_us == read_golden().optimal_us[problem.name]
    assert step_by_definition(problem, list(order)) == step_us
    assert max(peak_by_definition(problem, list(order))) <= budget


@pytest.mark.parametrize("name", HARD)
def test_hard_graphs(name: str) -> None:
    """The order in the file is optimal; ours is no worse than on the day it was found."""
    problem, known = read_problem(DATA / "hard" / f"{name}.json"), HARD[name]
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    order = [ids[node] for node in known["optimal_order"]]
    assert max(peak_by_definition(problem, list(problem.original_order))) == known["budget_bytes"]
    assert max(peak_by_definition(problem, order)) <= known["budget_bytes"]
    assert step_by_definition(problem, order) == known["optimal_us"]
    found = shortest_step(problem, known["budget_bytes"])
    assert found is not None
    assert found.step_us == known["optimal_us"]
    assert known["optimal_us"] <= schedule(problem).scheduled.step_us <= known["scheduled_us"]
