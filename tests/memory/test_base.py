"""A problem listed in another order is the same problem."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlap_sched.memory
from overlap_sched.errors import OrderError
from overlap_sched.liveness import memory_profile
from overlap_sched.memory.base import memory_base, relisted
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.replay import replay
from overlap_sched.validate import violation
from tests.graphs import problems
from tests.memory import RELAXED
from tests.oracle import random_order


@RELAXED
@given(problems(max_steps=20), st.integers(0, 1000), st.integers(0, 1000))
def test_orders_mean_the_same(problem: Problem, first: int, second: int) -> None:
    other = relisted(problem, random_order(problem, first))
    order = random_order(other.problem, second)
    back = other.original(order)
    assert violation(problem, back) is None
    assert memory_profile(problem, back) == memory_profile(other.problem, order)
    assert replay(problem, back).step_us == replay(other.problem, order).step_us
    assert problem.names(back) == other.problem.names(tuple(order))


@RELAXED
@given(problems(max_steps=20), st.sampled_from(("none", "group", "all")))
def test_base_is_the_memory_order(problem: Problem, preserve: str) -> None:
    options = Options(preserve_collective_order=preserve, memory_model=problem.memory_model)  # type: ignore[arg-type]
    base, plan = memory_base(problem, options)
    assert base.original(base.problem.original_order) == plan.order
    assert max(memory_profile(base.problem, base.problem.original_order)) == plan.peak_bytes


def test_an_order_that_cannot_run() -> None:
    with pytest.raises(OrderError) as caught:
        relisted(EXAMPLE, tuple(reversed(range(10))))
    assert str(caught.value) == ("'example' cannot be listed in this order: gather runs before w, on which it depends.")


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(overlap_sched.memory) == (0, 5)
