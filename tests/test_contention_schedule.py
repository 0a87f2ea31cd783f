"""The scheduler under contention: its own clock is the judges', and its promises hold."""

import pytest
from hypothesis import given, settings

from overlap_sched import improve
from overlap_sched.contention import Contention
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.replay import replay
from overlap_sched.result import Work
from overlap_sched.schedule import schedule
from tests.graphs import problems
from tests.test_contention import contended, contentions


@given(problems(max_steps=30), contentions)
@settings(max_examples=100)
def test_runs_know_the_times_that_the_judges_replay(problem: Problem, contention: Contention) -> None:
    problem = contended(problem, contention)
    runs = []

    def kept(reference, *arguments, **more):
        run = list_schedule(reference, *arguments, **more)
        runs.append((reference.problem, run))  # with contention, or the same problem without
        return run

    list_schedule = improve.list_schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(improve, "list_schedule", kept)
        schedule(problem, Options(memory_model=problem.memory_model, strict=True))
    for known, run in runs:
        if not isinstance(run, Work):
            assert run.step_us == pytest.approx(replay(known, run.order).step_us, rel=1e-9)
