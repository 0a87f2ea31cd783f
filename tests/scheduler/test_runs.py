"""When runs end, and that every promise is kept whatever stage is left out."""

import importlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.runs import busy_us, simple_bound_us, streams_bound_us
from overlap_sched.scheduler.task import Candidate, Reference, SchedulerRun, Task, Work
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import best_of_runs, forward, large_layers, layers, with_stage

under_test = importlib.import_module("overlap_sched.scheduler.runs")

ONE = layers(12)
TWO = forward(20)
"""Taken to have two chains where the test says so."""


def steps_asked(
    monkeypatch: pytest.MonkeyPatch, gaps: Sequence[float | None], effort: int = 4, chains: bool = False
) -> tuple[int, float]:
    """How many runs there were, and the gap of the best; run k ends so far above the bound, ``None``: given up."""
    problem = TWO if chains else ONE
    order = problem.original_order
    task = Task(problem, Options(effort=effort), 10**6)
    reference = Reference(problem, order, task.live_ranges)
    priorities = reference.priorities()
    bound_us = max(simple_bound_us(problem, priorities), streams_bound_us(problem, priorities))
    left = list(gaps)

    def run(*_: Any) -> SchedulerRun:
        gap = left.pop(0)
        if gap is None:
            return SchedulerRun(Work(1))
        return SchedulerRun(Work(1), Candidate(order, bound_us * (1 + gap), 5, {problem.collectives[0]: "reference"}))

    monkeypatch.setattr(under_test, "list_schedule", run)
    monkeypatch.setattr(under_test, "has_chains", lambda _: chains)
    monkeypatch.setattr(under_test, "interleaved", lambda *_: order)
    best = best_of_runs(task, reference, Candidate(order, 2 * bound_us, 5))
    assert best.work.runs == len(gaps) - len(left)
    return best.work.runs, best.step_us / bound_us - 1


@pytest.mark.parametrize(
    ("gaps", "runs"),
    [
        ([0.001, 9, 9, 9], 1),  # close enough
        ([0.012, 0.012, 9, 9], 2),  # near, and two policies end alike
        ([0.012, 0.011, 0.012, 9], 4),  # near, but each ends elsewhere
        ([0.012, None, 0.012, 9], 3),  # a run that was given up says nothing
        ([0.02, 0.02, 0.02, 0.02], 4),  # alike, but not near
    ],
)
def test_two_policies_that_end_at_the_same_step_near_the_bound_end_it(
    monkeypatch: pytest.MonkeyPatch, gaps: list[float | None], runs: int
) -> None:
    made, gap = steps_asked(monkeypatch, gaps)
    assert made == runs
    assert gap == pytest.approx(min(g for g in gaps[:runs] if g is not None))


def test_one_run_goes_from_chain_to_chain_where_the_first_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_asked(monkeypatch, [0.012, None, 0.012, 9], chains=True)[0] == 3  # policy, chains, policy
    assert steps_asked(monkeypatch, [0.05, None, None, None, None, 0.04, 0.03, 0.02], chains=True)[0] == 8
    assert steps_asked(monkeypatch, [0.05, 0.001], chains=True)[0] == 2


@pytest.mark.parametrize("problem", [ONE, TWO], ids=["backward", "forward"])
def test_the_bound_that_knows_the_end_of_streams_is_one(problem: Problem) -> None:
    bound_us = streams_bound_us(problem, Reference(problem, problem.original_order).priorities())
    assert busy_us(problem)[1] <= bound_us <= lower_bound_us(problem) * (1 + 1e-9)
    assert bound_us <= replay(problem, problem.original_order).step_us


def test_what_follows_on_the_last_collective_counts() -> None:
    # some compute is behind every collective of the forward pass
    assert streams_bound_us(TWO, Reference(TWO, TWO.original_order).priorities()) > busy_us(TWO)[1]


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
