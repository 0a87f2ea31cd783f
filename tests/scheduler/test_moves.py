"""Moves at random: by hand, and promises on random graphs."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, Problem
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, Order
from overlap_sched.problem.precedence import neighbours, positions
from overlap_sched.scheduler import moves
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.front import Front, FrontMember
from overlap_sched.scheduler.moves import Moves, as_another, near, singles, with_moves
from tests.scheduler.test_wander import scattered, task_of
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order


def member_of(task: Task, order: Order, lacking_for: Sequence[int] = ()) -> tuple[FrontMember, Front]:
    found = task.measured(order)
    member = FrontMember(order, found.step_us, 1, lacking_for, found)
    return member, Front([member], found.step_us, 1)


@given(problems(models=("runtime",)), st.integers(0, 2**32), st.sampled_from((0.0, 0.5, 1.0)), st.booleans())
@examples(50)
def test_what_is_moved_is_valid_and_the_same_each_time(
    problem: Problem, seed: int, single: float, lacking: bool
) -> None:
    task = Task(problem, Options(), int(LiveRanges(problem).profile(problem.original_order).max()))
    order, other = tuple(random_order(problem, seed)), tuple(random_order(problem, seed + 1))
    storages = [s for node in problem.nodes for s in node.alloc] if lacking else []
    start, front = member_of(task, order, storages)
    best = task.measured(problem.original_order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "SINGLE", single)
        one, two = Moves.of(task, best, [other]), Moves.of(task, best, [other])
        for _ in range(10):
            moved = one.moved(start, front)
            assert violation(problem, moved) is None
            assert two.moved(start, front) == moved


def test_parts_that_are_anywhere_come_to_the_best_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "AIMED", 0.0)
    monkeypatch.setattr(moves, "SINGLE", 0.0)
    task = task_of(scattered())
    best = task.measured(tuple(random_order(task.problem, 1)))
    order = tuple(random_order(task.problem, 2))
    assert order != best.order
    found = Moves.of(task, best, [])
    for _ in range(100):
        order = found.moved(*member_of(task, order))
    assert order == best.order


@pytest.mark.parametrize(("of_front", "towards"), [(1.0, 0), (0.0, 1)])
def test_aimed_parts_come_to_the_front_or_to_other_orders(
    monkeypatch: pytest.MonkeyPatch, of_front: float, towards: int
) -> None:
    monkeypatch.setattr(moves, "AIMED", 1.0)
    monkeypatch.setattr(moves, "SINGLE", 0.0)
    monkeypatch.setattr(moves, "OF_FRONT", of_front)
    task = task_of(scattered())
    orders = [tuple(random_order(task.problem, seed)) for seed in (1, 2)]
    storages = range(len(task.problem.storages))
    start, _ = member_of(task, task.problem.original_order, storages)
    _, front = member_of(task, orders[0])
    found = Moves.of(task, task.measured(orders[0]), orders[1:])
    for _ in range(100):
        moved = found.moved(start, front)
        start, _ = member_of(task, moved, storages)
    assert moved == orders[towards]


def test_what_lacks_nothing_comes_to_the_best_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to aim at."""
    monkeypatch.setattr(moves, "AIMED", 1.0)
    monkeypatch.setattr(moves, "SINGLE", 0.0)
    task = task_of(scattered())
    best, order = (tuple(random_order(task.problem, seed)) for seed in (1, 2))
    found = Moves.of(task, task.measured(best), [order])
    for _ in range(100):
        order = found.moved(*member_of(task, order))
    assert order == best


def test_aimed_only_what_runs_near_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "near", lambda at, rng: slice(at, at))
    monkeypatch.setattr(moves, "SINGLE", 1.0)
    task = task_of(scattered())
    order = task.problem.original_order
    storages = [task.problem.nodes[order[4]].alloc[0]]
    start, front = member_of(task, order, storages)
    for aimed, moved in ((1.0, False), (0.0, True)):
        monkeypatch.setattr(moves, "AIMED", aimed)
        found = Moves.of(task, start.made_from, [])
        assert any(found.moved(start, front) != order for _ in range(50)) == moved


def test_aimed_is_at_what_something_is_lacking_for(monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[int]()

    def noted(at: int, _: random.Random) -> slice:
        places.append(at)
        return slice(at, at)

    monkeypatch.setattr(moves, "near", noted)
    monkeypatch.setattr(moves, "AIMED", 1.0)
    task = task_of(scattered())
    order = task.problem.original_order
    makers = [order[2], order[6]]
    start, front = member_of(task, order, [task.problem.nodes[v].alloc[0] for v in makers])
    found = Moves.of(task, start.made_from, [])
    for _ in range(50):
        found.moved(start, front)
    assert set(places) == {2, 6}
    start, _ = member_of(task, order)
    for _ in range(200):
        found.moved(start, front)
    assert set(places) == set(range(len(order)))  # nothing is lacking: anywhere


def test_a_part_is_what_runs_before_a_place_and_a_little_behind() -> None:
    order, sizes = range(5000), set[int]()
    for seed in range(50):
        part = order[near(3000, random.Random(seed))]
        before, behind = 3000 - part[0], part[-1] - 3000
        assert behind == before // 4
        sizes.add(before)
    assert 20 <= min(sizes) < 40
    assert 500 < max(sizes) <= 1000
    assert sorted(sizes)[len(sizes) // 2] < 200  # more often few than many
    assert (0, 1, 2)[near(1, random.Random(0))] == (0, 1, 2)


def test_inputs_and_the_output_are_not_moved_alone() -> None:
    task = task_of(scattered())
    found = Moves.of(task, task.measured(task.problem.original_order), [])
    kinds = {task.problem.nodes[v].kind for v in found.movable}
    assert kinds == {Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT}
    assert len(found.movable) == len(task.problem.nodes) - 1


def test_single_nodes_more_often_few_than_many() -> None:
    counts = sorted(len(singles(range(1000), random.Random(seed))) for seed in range(200))
    assert counts[0] == 1
    assert counts[100] < 10
    assert 20 < counts[-1] <= 30
    distances = {distance for seed in range(200) for _, distance in singles(range(1000), random.Random(seed))}
    assert (min(distances), max(distances)) == (-100, 100)
    assert len(singles([3, 5], random.Random(3))) <= 2
    assert singles([], random.Random(0)) == []


def test_a_node_goes_as_far_as_its_neighbours_admit() -> None:
    task = task_of(scattered())
    order, rules = task.problem.original_order, neighbours(task.problem, ())
    scatter = task.problem.names(order).index("scatter")

    def moved(distance: int) -> str:
        return " ".join(task.problem.names(with_moves(order, [(scatter, distance)], rules)))

    assert moved(-9) == moved(0) == "big a b x scatter mm big2 y wait output"  # it needs x
    assert moved(1) == "big a b x mm scatter big2 y wait output"
    assert moved(9) == "big a b x mm big2 y scatter wait output"  # its wait needs it


@pytest.mark.parametrize(
    ("percent", "moved"), [(0, "abcdefghijkl"), (50, "abcdefighjkl"), (75, "abcdefihgjkl"), (100, "abcdeifhgjkl")]
)
def test_a_part_of_an_order_goes_part_of_the_way_to_another(percent: int, moved: str) -> None:
    order, places = tuple(range(12)), positions(["abcdefghijkl".index(letter) for letter in "iafbhcgedljk"])
    found = as_another(order, slice(5, 9), places, percent)
    assert "".join("abcdefghijkl"[v] for v in found) == moved
    assert as_another(order, slice(9, 9), places, percent) == order
