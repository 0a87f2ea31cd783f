"""Orders in between: followed as far as the budget allows, and what is found there is what it is said to be."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap_sched import Options, Problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import MAX_TOTAL_BYTES
from overlap_sched.problem.allocator_settings import PLAIN
from overlap_sched.problem.file import read_problem
from overlap_sched.problem.precedence import neighbours
from overlap_sched.scheduler import combine
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.combine import ALIKE, FAR, Tried, _couples, combined, followed
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from overlap_sched.scheduler.reference import Reference
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, random_order


def task_of(problem: Problem, headroom: int = 0, budget: str = "peak") -> Task:
    peak = int(LiveRanges(problem).profile(problem.original_order).max())
    return Task(problem, Options(headroom=headroom, budget=budget), peak)  # type: ignore[arg-type]


def followed_from_the_original(task: Task, order: tuple[int, ...]) -> tuple[int, ...]:
    reference = Reference(task.problem, task.problem.original_order, task.live_ranges)
    return followed(task, reference, order, neighbours(task.problem, task.pairs))


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 99))
def test_without_a_budget_an_order_is_followed_to_the_letter(problem: Problem, seed: int) -> None:
    task = task_of(problem, headroom=MAX_TOTAL_BYTES)
    order = tuple(random_order(problem, seed))
    assert followed_from_the_original(task, order) == order


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 99), st.sampled_from(("peak", "profile")))
def test_what_is_followed_is_valid_and_within_the_budget(problem: Problem, seed: int, budget: str) -> None:
    task = task_of(problem, budget=budget)
    original = problem.original_order
    order = followed_from_the_original(task, tuple(random_order(problem, seed)))
    assert violation(problem, order) is None
    assert task.within_budget(order)
    assert followed_from_the_original(task, original) == original


@settings(max_examples=150, deadline=None)
@given(problems(max_steps=20), st.integers(0, 99), st.integers(0, 99))
def test_orders_in_between_are_within_the_budget(problem: Problem, seed: int, other: int) -> None:
    orders = [tuple(random_order(problem, which)) for which in (seed, other)]
    peak = max(int(LiveRanges(problem).profile(order).max()) for order in (*orders, problem.original_order))
    task = Task(problem, Options(), peak)
    first, second = (task.measured(order) for order in orders)
    found = list(combine._in_between(task, first, second, neighbours(problem, task.pairs)))
    assert len(found) == 2 * len(combine.PARTS)
    for order in found:
        assert violation(problem, order) is None
        assert task.within_budget(order)


@settings(max_examples=80, deadline=None)
@given(problems(models=("runtime",)), st.integers(0, 99), st.floats(0.3, 1.0), st.integers(0, 12))
def test_what_is_found_in_between_is_new_and_as_it_is_said_to_be(
    problem: Problem, seed: int, part: float, trials: int
) -> None:
    task = task_of(with_sizes_of_all_kinds(problem))
    reserve = Reserve.of(task, PLAIN)
    reserve = replace(reserve, capacity_bytes=int(part * reserve.capacity_bytes))
    tried: list[Tried] = []
    for order in (task.problem.original_order, *(tuple(random_order(task.problem, seed + k)) for k in range(6))):
        if task.within_budget(order):
            tried.append((reserve.overdraft(order), task.measured(order)))
    best_us = min(found.step_us for _, found in tried)
    held_us = min((found.step_us for broken, found in tried if broken == NOTHING), default=math.inf)
    new = combined(reserve, tried, best_us, 0.0, best_us, trials)
    assert len(new) <= trials
    assert len({found.order for _, found in [*tried, *new]}) == len({found.order for _, found in tried}) + len(new)
    for broken, found in new:
        assert violation(task.problem, found.order) is None
        assert task.within_budget(found.order)
        assert found.step_us == replay(task.problem, found.order).step_us < min(held_us, best_us * FAR)
        assert broken == reserve.overdraft(found.order)
        if broken == NOTHING:
            held_us = found.step_us


@pytest.fixture(scope="module")
def forward() -> tuple[Reserve, list[Tried]]:
    """A real graph: the original order, which can be held, and the best for live bytes alone, which cannot."""
    problem = read_problem(INSTANCES / "llama3_8b_fw_64_2d.json.gz")
    task = task_of(problem)
    reserve = Reserve.of(task, PLAIN)
    orders = problem.original_order, schedule(problem, Options(allocator="none", effort=1)).order
    tried = [(reserve.overdraft(order), task.measured(order)) for order in orders]
    assert tried[0][0] == NOTHING != tried[1][0]
    return reserve, tried


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """These two are 12 % apart, which is too far by default."""
    monkeypatch.setattr(combine, "FAR", 1.5)


@pytest.mark.usefixtures("far")
def test_between_the_original_and_the_best_there_is_what_is_nearer_to_being_held(
    forward: tuple[Reserve, list[Tried]],
) -> None:
    reserve, tried = forward
    (_, original), (_, best) = tried
    new = combined(reserve, tried, best.step_us, 0.0, best.step_us * 1.02, 9)
    assert len(new) == len({found.order for _, found in [*tried, *new]}) - 2 == 9
    for broken, found in new:
        assert violation(reserve.task.problem, found.order) is None
        assert reserve.task.within_budget(found.order)
        assert broken == reserve.overdraft(found.order)
    assert (
        min(broken for broken, _ in new) < tried[1][0]
    )  # nearer to being held than the best, and shorter than the original
    assert max(found.step_us for _, found in new) < original.step_us
    assert combined(reserve, tried, best.step_us, original.step_us, best.step_us * 1.02, 9) == []


@pytest.mark.usefixtures("far")
def test_two_orders_are_combined_once(forward: tuple[Reserve, list[Tried]], monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, tried = forward
    (_, original), (_, best) = tried
    most_us, couples = original.step_us * 0.999, list[tuple[Candidate, Candidate]]()
    _, nearer = min(combined(reserve, tried, best.step_us, 0.0, most_us, 9), key=lambda pair: pair[0])

    def noted(task: Task, first: Candidate, second: Candidate, rules: object) -> list[tuple[int, ...]]:
        couples.append((first, second))
        return [nearer.order]

    monkeypatch.setattr(combine, "_in_between", noted)
    new = combined(reserve, tried, best.step_us, 0.0, most_us, 9)
    assert [found.order for _, found in new] == [nearer.order]
    assert len(couples) == len({(first.order, second.order) for first, second in couples}) > 2  # a second round


def test_those_that_break_least_are_combined_with_those_that_are_short() -> None:
    def pair(over_bytes: int, step_us: float) -> Tried:
        return Overdraft(False, 0, over_bytes), Candidate((over_bytes,), step_us, 0)

    best_us = 1000.0
    pool = [pair(900 - 100 * k, best_us * (1 + 5 * k * ALIKE)) for k in range(8)] + [pair(0, best_us * FAR * 1.01)]
    least, short = [200, 300, 400], [900, 800, 700]
    assert [(one.order[0], other.order[0]) for one, other in _couples(pool, best_us)] == [
        (one, other) for one in least for other in short
    ]


def test_of_steps_that_are_alike_the_one_that_breaks_least_counts() -> None:
    def pair(name: int, over_bytes: int, step_us: float) -> Tried:
        return Overdraft(False, 0, over_bytes), Candidate((name,), step_us, 0)

    pool = [pair(0, 50, 1000.1), pair(1, 40, 1000.9), pair(2, 40, 1000.5), pair(3, 7, 1050.0)]
    assert [(one.order[0], other.order[0]) for one, other in _couples(pool, 1000.0)] == [
        (3, 2),
        (2, 3),
        (0, 2),
        (0, 3),
    ]
