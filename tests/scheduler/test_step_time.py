"""The step alone is what the judge says it is."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Problem
from overlap_sched.scheduler.step_time import StepTimes
from tests.support.graphs import problems
from tests.support.oracle import random_order


@given(problems(), st.integers(0, 2**32))
def test_as_the_judge_says(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    assert StepTimes(problem).of(order) == replay(problem, order).step_us
