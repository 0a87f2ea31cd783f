"""The step alone is what the judge says it is, also where only a part of an order is looked at anew."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.simulate.clock import StepTimes, StepTrail
from tests.judge.test_contention import contended, with_lanes
from tests.support.graphs import problems
from tests.support.oracle import random_order

SEEDS = st.integers(0, 2**32)


@given(problems(), SEEDS)
def test_as_the_judge_says(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    assert StepTimes(problem).of(order) == replay(problem, order).step_us


@given(problems(), with_lanes, SEEDS)
def test_also_under_contention(problem: Problem, contention: Contention, seed: int) -> None:
    """To rounding: compute between two launches or waits is added up before it is slowed down."""
    problem, order = contended(problem, contention), random_order(problem, seed)
    assert StepTimes(problem).of(order) == pytest.approx(replay(problem, order).step_us, rel=1e-9)


def like(order: list[int], other: list[int], seed: int) -> list[int]:
    """The order, in some middle part of it as the other one."""
    begin, end = sorted((seed % (len(order) + 1), seed // 1000 % (len(order) + 1)))
    part = set(order[begin:end])
    return [*order[:begin], *(v for v in other if v in part), *order[end:]]


@given(problems(), st.one_of(st.just(None), with_lanes), SEEDS, st.lists(SEEDS, min_size=1, max_size=4))
def test_orders_that_begin_alike(
    problem: Problem, contention: Contention | None, seed: int, seeds: Sequence[int]
) -> None:
    if contention is not None:
        problem = contended(problem, contention)
    times, order = StepTimes(problem), random_order(problem, seed)
    trail, others = StepTrail(times, order), [random_order(problem, each) for each in seeds]
    for other in (order, *others, *(like(order, other, seed) for other in others), order):
        assert trail.of(other) == times.of(other)
