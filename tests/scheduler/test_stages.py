"""Stages: whatever is left out, every promise is kept; what is left out does not run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.driver import ALL
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import large_layers
from tests.support.stages import with_stage


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
    with pytest.raises(ValueError, match="no stage is called polish; there are first run, chains"):
        ALL.without("polish")
