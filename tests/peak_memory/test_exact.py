"""The integer program against brute force, and what a user reads where it cannot help."""

import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overlap_sched.errors import MissingExtraError, OptionsError, UnreachableError
from overlap_sched.peak_memory import exact
from overlap_sched.peak_memory.best import MemoryPlan, best_order, judged
from overlap_sched.peak_memory.exact import Solver, exact_order, program_of, solve
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from tests.peak_memory import SMALL
from tests.peak_memory.test_orders import allowed, chain_with_updates, lowest_peak
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition

SOLVERS = st.sampled_from(("cp-sat", "highs"))
ortools = pytest.mark.skipif("not __import__('importlib').util.find_spec('ortools')", reason="needs ortools")


def small_sizes(problem: Problem) -> Problem:
    """HiGHS cannot tell 2**40 from 2**40 + 1."""
    return replace(problem, storages=tuple(Storage(min(s.bytes, 16), s.pinned) for s in problem.storages))


@pytest.mark.slow
@ortools
@examples(40, SMALL)
@given(problems(max_steps=5).map(small_sizes), SOLVERS)
def test_program_of_the_whole_graph_is_exact(problem: Problem, solver: Solver) -> None:
    graph = memory_graph_of(problem, "group")
    start = judged(graph, graph.rest)
    assume(graph.rest and start.peak_node >= 0)
    lowest = lowest_peak(problem, "group")
    program = program_of(graph, graph.rest, 0, len(graph.rest))
    unit = program.unit_bytes
    solved = solve(program, solver, 0, start.score[0] // unit, 10.0, 10.0)
    assert solved.values is not None
    assert solved.ended
    order = list(lead_with_inputs(graph, program.order(solved.values)))
    assert allowed(problem, order, "group")
    assert max(peak_by_definition(problem, order)) == lowest
    assert solved.bound * unit <= lowest


@given(problems(max_steps=16), st.integers(0, 6), st.integers(1, 8))
def test_hints_are_the_order_so_far(problem: Problem, begin: int, length: int) -> None:
    """The program's own reckoning of a window, at the hinted values, is that of the judge."""
    graph = memory_graph_of(problem, "group")
    begin = min(begin, len(graph.rest))
    end = min(begin + length, len(graph.rest))
    program = program_of(graph, graph.rest, begin, end)
    profile = peak_by_definition(problem, list(lead_with_inputs(graph, graph.rest)))[len(graph.first) :]
    assert program.order(program.hints) == list(graph.rest[begin:end])
    steps = [step.constant + sum(c * program.hints[x] for x, c in step.terms.items()) for step in program.steps]
    assert [step * program.unit_bytes for step in steps] == profile[begin:end]
    for terms, bound in program.rows:
        assert sum(c * program.hints[x] for x, c in terms) >= bound
    for terms, value in program.equal_rows:
        assert sum(c * program.hints[x] for x, c in terms) == value


def test_reductions_leave_a_chain_without_variables() -> None:
    storages = tuple(Storage(8) for _ in range(20))
    nodes = [Node("n0", Kind.COMPUTE, (), (0,), ())]
    nodes += [Node(f"n{k}", Kind.COMPUTE, (k - 1,), (k,), (k - 1,)) for k in range(1, 20)]
    graph = memory_graph_of(Problem("chain", tuple(nodes), storages))
    program = program_of(graph, graph.rest, 0, 20)
    assert program.variables == 0
    assert program.unit_bytes == 8
    assert [step.constant for step in program.steps] == [1, *[2] * 19]


def unproven(problem: Problem, *_: object) -> MemoryPlan:
    """What a weaker search would hand over: the original order, and a bound that is far too low."""
    plan = best_order(problem)
    return replace(
        plan, order=problem.original_order, peak_bytes=plan.original_bytes, bound_bytes=1, found_by="original"
    )


def only_windows(monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    """The search leaves everything open, and what has more than ten nodes is solved so many at a time."""
    monkeypatch.setattr(exact, "best_order", unproven)
    monkeypatch.setattr(exact, "MOST_WHOLE", 10)
    monkeypatch.setattr(exact, "WINDOW", nodes)


@pytest.mark.slow
@ortools
@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_what_the_search_leaves_open_is_solved(monkeypatch: pytest.MonkeyPatch, solver: Solver) -> None:
    problem = chain_with_updates(6)
    expected = best_order(problem)
    assert expected.optimal
    monkeypatch.setattr(exact, "best_order", unproven)
    plan = exact_order(problem, solver=solver)
    assert (plan.peak_bytes, plan.optimal, plan.found_by) == (expected.peak_bytes, True, solver)
    assert max(peak_by_definition(problem, list(plan.order))) == plan.peak_bytes


@pytest.mark.slow
@ortools
def test_larger_graphs_are_solved_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_with_updates(12)
    only_windows(monkeypatch, 12)
    plan = exact_order(problem)
    assert plan.peak_bytes == best_order(problem).peak_bytes < plan.original_bytes
    assert allowed(problem, list(plan.order), "group")


def test_no_solver_is_needed_where_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    assert exact_order(EXAMPLE).optimal


@pytest.mark.parametrize(
    ("solver", "module"),
    [("cp-sat", "ortools.sat.python.cp_model"), ("highs", "ortools.linear_solver.python.model_builder")],
)
def test_a_missing_solver(monkeypatch: pytest.MonkeyPatch, solver: Solver, module: str) -> None:
    monkeypatch.setattr(exact, "best_order", unproven)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        exact_order(chain_with_updates(4), solver=solver)
    assert str(caught.value).startswith("the exact search needs OR-tools, which is not installed: pip install")


def test_a_limit_that_no_order_keeps() -> None:
    with pytest.raises(UnreachableError) as caught:
        exact_order(EXAMPLE, "group", limit_bytes=10 * 2**20)
    assert str(caught.value).startswith("no order of 'example' fits into 10485760 bytes: whatever the order, 22020096")
    assert str(caught.value).endswith("22020096 bytes: allow that, or recompute activations, which is another graph.")


@pytest.mark.slow
@ortools
def test_limits_hit_without_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_with_updates(40)
    only_windows(monkeypatch, 4)
    with pytest.raises(UnreachableError) as caught:
        exact_order(problem, limit_bytes=500, time_limit_s=0.5, effort=0)
    found = str(caught.value).split("the lowest peak found is ")[1].split(" ")[0]
    assert str(caught.value).startswith("no order of 'steps' within 500 bytes was found in 0.5 s at effort 0, and")
    assert str(caught.value).endswith(f"is {found} bytes, the bound 1. Give more time or effort, or a higher limit.")


def test_a_limit_that_the_search_keeps_needs_no_proof() -> None:
    plan = exact_order(EXAMPLE, "group", limit_bytes=21 * 2**20)
    assert plan.peak_bytes == 21 * 2**20


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"limit_bytes": -1}, "limit_bytes is -1; it is a whole number of bytes, 0 or more, or None."),
        ({"limit_bytes": "1GiB"}, "limit_bytes is '1GiB'; it is a whole number of bytes, 0 or more, or None."),
        ({"solver": "gurobi"}, "solver is 'gurobi'; it is 'cp-sat' or 'highs'."),
        ({"time_limit_s": 0}, "time_limit_s is 0; it is a number of seconds above 0."),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan; it is a number of seconds above 0."),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        exact_order(EXAMPLE, **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == text
