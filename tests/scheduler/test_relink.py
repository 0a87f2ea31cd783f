"""Orders between two orders: valid, and what is made of them is within the budget and never longer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.validate import violation
from overlap_sched.problem.file import read_problem
from overlap_sched.scheduler import polish
from overlap_sched.scheduler.driver import ALL, relink_far_from_bound
from overlap_sched.scheduler.polish import between
from overlap_sched.scheduler.task import NO_WORK, Candidate, Reference, Task, Work
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, peak_by_definition, random_order, step_by_definition
from tests.support.stages import best_of_runs, with_stage

BACKWARD_2D, FORWARD_2D = (INSTANCES / f"llama3_8b_{part}_64_2d.json.gz" for part in ("bw", "fw"))


def test_positions_are_weighted_means() -> None:
    assert between((0, 1, 2, 3, 4, 5), (5, 0, 1, 2, 3, 4), 60) == (0, 1, 5, 2, 3, 4)


@examples(60)
@given(problems(max_steps=20), st.integers(0, 99), st.integers(0, 99), st.integers(0, 100))
def test_orders_in_between_are_valid(problem: Problem, seed: int, other: int, percent: int) -> None:
    first, second = tuple(random_order(problem, seed)), tuple(random_order(problem, other))
    assert violation(problem, between(first, second, percent)) is None
    assert (between(first, second, 0), between(first, second, 100)) == (first, second)


@examples(60)
@given(problems(max_steps=20), st.integers(1, 3), st.integers(0, 12))
def test_within_the_budget_and_never_longer(problem: Problem, effort: int, room: int) -> None:
    peak = max(peak_by_definition(problem, list(problem.original_order)))
    options = Options(memory_model=problem.memory_model, effort=effort, headroom=room)
    task = Task(problem, options, peak)
    reference = Reference(problem, problem.original_order, task.live_ranges)
    best = best_of_runs(task, reference, task.measured(problem.original_order))
    made = relink_far_from_bound(task, reference, best)
    assert violation(problem, made.order) is None
    assert made.step_us == step_by_definition(problem, list(made.order)) <= best.step_us * (1 + 1e-9)
    assert made.peak_bytes == max(peak_by_definition(problem, list(made.order))) <= peak + room
    assert made.work.runs >= best.work.runs


def runs_there(problem: Problem) -> list[Work]:
    """What runs of this stage take, of a problem scheduled."""
    made = list[Work]()

    def watched(real: Any, task: Task, reference: Reference, best: Candidate) -> Candidate:
        after: Candidate = real(task, reference, best)
        made.append(after.work if after.work != best.work else NO_WORK)
        return after

    schedule(problem, Options(strict=True), stages=with_stage("relink", watched))
    return made


@pytest.mark.slow
def test_near_the_bound_nothing_is_tried() -> None:
    assert runs_there(read_problem(FORWARD_2D)) == [NO_WORK]


@pytest.mark.slow
def test_where_network_and_memory_bind_the_step_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that gains next to nothing is the last."""
    problem, rounds = read_problem(BACKWARD_2D), list[tuple[float, float]]()
    real = polish._round

    def watched(task: Task, reference: Reference, best: Candidate) -> Candidate:
        after = real(task, reference, best)
        rounds.append((best.step_us, after.step_us))
        return after

    monkeypatch.setattr(polish, "_round", watched)
    options = Options(strict=True)
    stages = ALL.without("fill stalls")  # it gains much of the same
    with_it, without = (schedule(problem, options, stages=those) for those in (stages, stages.without("relink")))
    assert with_it.scheduled.step_us < 0.975 * without.scheduled.step_us
    assert with_it.scheduled.peak_bytes <= with_it.original.peak_bytes
    assert rounds[0][0] == without.scheduled.step_us
    assert rounds[-1][1] == with_it.scheduled.step_us
    gains = [1 - after / before for before, after in rounds]
    assert gains[0] > polish.WORTH_FIRST
    assert all(gain > polish.WORTH_MORE for gain in gains[:-1])
    assert len(rounds) == 4 or gains[-1] <= polish.WORTH_MORE
