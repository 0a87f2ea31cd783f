"""The integer program against brute force, and what a user reads where it cannot help."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import MissingExtraError, OptionsError, UnreachableError
from overlap_sched.peak_memory import exact
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.problem import EXAMPLE, Problem
from tests.peak_memory.test_orders import SMALL, allowed, chain_with_updates, lowest_peak, with_kept_storages
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition

ortools = pytest.mark.skipif("not __import__('importlib').util.find_spec('ortools')", reason="needs ortools")


def unproven(problem: Problem, *_: object) -> MemoryPlan:
    """What a weaker search would hand over: the original order, and a bound that is far too low."""
    plan = best_order(problem)
    return replace(
        plan, order=problem.original_order, peak_bytes=plan.original_bytes, bound_bytes=0, found_by="original"
    )


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The search leaves everything open."""
    monkeypatch.setattr(exact, "best_order", unproven)
    return monkeypatch


@pytest.mark.slow
@ortools
@examples(40, SMALL)
@given(problems(max_steps=5), st.integers(0, 2**16 - 1), st.integers(0, 4))
def test_program_of_the_whole_graph_is_exact(problem: Problem, pins: int, at_end: int) -> None:
    problem = with_kept_storages(problem, pins, at_end)
    lowest = lowest_peak(problem, "group")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "best_order", unproven)
        plan = exact_order(problem, "group")
    assert allowed(problem, list(plan.order), "group")
    assert max(peak_by_definition(problem, list(plan.order))) == plan.peak_bytes == lowest
    assert plan.bound_bytes == lowest or plan.order == problem.original_order  # its peak is where inputs are


@pytest.mark.slow
@ortools
def test_larger_graphs_are_solved_window_by_window(weak: pytest.MonkeyPatch) -> None:
    problem = chain_with_updates(12)
    weak.setattr(exact, "MOST_WHOLE", 10)
    weak.setattr(exact, "WINDOW", 12)
    plan = exact_order(problem)
    assert plan.peak_bytes == best_order(problem).peak_bytes < plan.original_bytes
    assert plan.found_by == "cp-sat"
    assert allowed(problem, list(plan.order), "group")


def test_no_solver_is_needed_where_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    assert exact_order(EXAMPLE).optimal
    assert exact_order(EXAMPLE, "group", limit_bytes=21 * 2**20).peak_bytes == 21 * 2**20
    with pytest.raises(UnreachableError, match="fits into 10485760 bytes: whatever the order, 22020096 bytes are live"):
        exact_order(EXAMPLE, "group", limit_bytes=10 * 2**20)


def test_a_missing_solver(weak: pytest.MonkeyPatch) -> None:
    weak.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'overlap_sched\[exact\]'"):
        exact_order(chain_with_updates(4))


@pytest.mark.slow
@ortools
def test_limits_hit_without_a_solution(weak: pytest.MonkeyPatch) -> None:
    weak.setattr(exact, "MOST_WHOLE", 10)
    weak.setattr(exact, "WINDOW", 4)
    with pytest.raises(UnreachableError, match=r"within 500 bytes was found in 0\.5 s at effort 0, and none was ruled"):
        exact_order(chain_with_updates(40), limit_bytes=500, time_limit_s=0.5, effort=0)


@pytest.mark.parametrize(
    "wrong", [{"limit_bytes": -1}, {"limit_bytes": "1GiB"}, {"time_limit_s": 0}, {"time_limit_s": float("nan")}]
)
def test_arguments_that_cannot_be(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(OptionsError, match=f"^{name} is {value!r}; it is a "):
        exact_order(EXAMPLE, **wrong)  # type: ignore[arg-type]
