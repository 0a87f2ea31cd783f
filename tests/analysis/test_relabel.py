"""A problem listed in another order is the same problem."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.analysis.relabel import in_original_ids, relabelled
from overlap_sched.errors import ProblemError
from overlap_sched.judge.validate import violation
from overlap_sched.problem import EXAMPLE, Problem
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition, random_order, step_by_definition


@given(problems(max_steps=20), st.integers(0, 1000), st.integers(0, 1000))
def test_orders_mean_the_same(problem: Problem, first: int, second: int) -> None:
    listing = random_order(problem, first)
    other = relabelled(problem, listing)
    order = random_order(other, second)
    back = in_original_ids(order, listing)
    assert violation(problem, back) is None
    assert peak_by_definition(problem, list(back)) == peak_by_definition(other, order)
    assert step_by_definition(problem, list(back)) == step_by_definition(other, order)
    assert problem.names(back) == other.names(tuple(order))
    assert problem.names(tuple(listing)) == other.names(other.original_order)


def test_an_order_that_cannot_run() -> None:
    with pytest.raises(ProblemError) as caught:
        relabelled(EXAMPLE, tuple(reversed(range(10))))
    assert str(caught.value) == "'example' cannot be listed in this order: gather runs before w, on which it depends."
