"""When runs end, and that every promise is kept whatever stage is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.runs import busy_us, streams_bound_us
from overlap_sched.scheduler.task import Reference
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import forward, large_layers, layers, with_stage

ONE = layers(12)
TWO = forward(20)
"""Taken to have two chains where the test says so."""


@pytest.mark.parametrize("problem", [ONE, TWO], ids=["backward", "forward"])
def test_the_bound_that_knows_the_end_of_streams_is_one(problem: Problem) -> None:
    bound_us = streams_bound_us(Reference(problem, problem.original_order).priorities())
    assert busy_us(problem)[1] <= bound_us <= lower_bound_us(problem) * (1 + 1e-9)
    assert bound_us <= replay(problem, problem.original_order).step_us


@examples(60)
@given(problems(models=("runtime",), max_steps=20), st.sets(st.sampled_from(ALL.names)))
def test_every_promise_is_kept_without_some_of_them(problem: Problem, without: set[str]) -> None:
    found = schedule(problem, Options(strict=True), stages=ALL.without(*without))
    assert violation(problem, found.order) is None
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert found.scheduled.step_us <= found.original.step_us * (1 + 1e-9)


def test_without_any_the_original_order_stays() -> None:
    problem = large_layers(8)
    assert schedule(problem, stages=ALL.without(*ALL.names)).order == problem.original_order


@pytest.mark.parametrize("name", ALL.names)
def test_what_is_left_out_does_not_run(name: str) -> None:
    ran = list[str]()

    def noted(real: object, task: object, reference: object, found: object) -> object:
        ran.append(name)
        return found

    watched = with_stage(name, noted)
    schedule(large_layers(8, 64), Options(strict=True), stages=watched)
    assert ran
    ran.clear()
    schedule(large_layers(8, 64), Options(strict=True), stages=watched.without(name))
    assert not ran
    assert all(stage.purpose for stage in ALL.all)
    with pytest.raises(ValueError, match="no stage is called polish; there are without contention, first run"):
        ALL.without("polish")
