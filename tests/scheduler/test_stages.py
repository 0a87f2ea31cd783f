"""Stages: whatever is left out, every promise is kept; what is left out does not run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.stages import ALL, QUICK
from tests.scheduler.test_reserve import large_layers
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.stages import with_stage


@examples(60)
@given(problems(models=("runtime",), max_steps=20), st.sets(st.sampled_from(ALL.names)), st.integers(0, 2))
def test_every_promise_is_kept_without_some_of_them(problem: Problem, without: set[str], seed: int) -> None:
    options = Options(allocator="plain", strict=True)
    found = schedule(problem, options, stages=ALL.without(*without), seed=seed)
    assert violation(problem, found.order) is None
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert found.scheduled.step_us <= found.original.step_us * (1 + 1e-9)


def test_without_any_the_original_order_stays() -> None:
    problem = large_layers(8)
    assert schedule(problem, stages=ALL.without(*ALL.names)).order == problem.original_order


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first run", "gate run", "fill links"])
def test_what_is_left_out_does_not_run(name: str) -> None:
    ran = list[str]()

    def noted(real: object, context: object, found: object) -> object:
        ran.append(name)
        return found

    watched = with_stage(name, noted)
    schedule(large_layers(8, 64), Options(allocator="plain", strict=True), stages=watched)
    assert ran
    ran.clear()
    schedule(large_layers(8, 64), Options(allocator="plain", strict=True), stages=watched.without(name))
    assert not ran


def test_what_is_quick_is_the_rest() -> None:
    assert set(ALL.names) - set(QUICK.names) == {"random walk", "fill links"}
    assert all(stage.purpose for stage in (*ALL.live, *ALL.fitting, *ALL.at_any_price, *ALL.fitted, *ALL.last))
