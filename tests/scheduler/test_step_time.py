"""The step alone is what the judge says it is."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler.step_time import StepTimes
from tests.judge.test_contention import contended, with_lanes
from tests.support.graphs import problems
from tests.support.oracle import random_order


@given(problems(), st.integers(0, 2**32))
def test_as_the_judge_says(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    assert StepTimes(problem).of(order) == replay(problem, order).step_us


@given(problems(), with_lanes, st.integers(0, 2**32))
def test_also_under_contention(problem: Problem, contention: Contention, seed: int) -> None:
    problem, order = contended(problem, contention), random_order(problem, seed)
    assert StepTimes(problem).of(order) == replay(problem, order).step_us
