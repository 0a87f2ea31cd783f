"""Random walks: by hand on a small problem, and promises on random graphs."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.allocator.shortage import Replays
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, PLAIN
from overlap_sched.problem.precedence import neighbours
from overlap_sched.scheduler import wander
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.wander import wandered
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import random_order


def scattered() -> Problem:
    """Where the scatter runs, only 500 MiB lie free; behind ``mm`` the place of ``b``, beside ``a``, which lasts, does.

    ::

        node       big  a   b   x     scatter            mm        big2
        segments   500  500 500 [500] | 3 | 497 free |   ...       520: does not fit beside 500 that never go back
                        | a |12 free| | a | b |          | a |12 free|
                            | a | b |
    """
    rows = (
        ("big", 500, ""),
        ("a", 8, ""),
        ("b", 11, ""),
        ("x", 1, "big"),
        ("scatter", 3, "x"),
        ("mm", 1, "b"),
        ("big2", 520, "mm"),
        ("y", 1, "big2"),
        ("wait", 0, "scatter"),
    )
    names = [name for name, _, _ in rows]
    nodes = []
    for v, (name, _, uses) in enumerate(rows):
        used = tuple(names.index(u) for u in uses.split())
        if name == "scatter":
            nodes.append(Node(name, Kind.COLLECTIVE, used, (v,), used, 5.0, "reduce_scatter", "g"))
        elif name == "wait":
            nodes.append(Node(name, Kind.WAIT, used, (), (names.index("x"), *used), collective=used[0]))
        else:
            nodes.append(Node(name, Kind.COMPUTE, used, (v,), used, 10.0))
    lasting = tuple(names.index(name) for name in ("a", "y", "scatter"))
    nodes.append(Node("output", Kind.OUTPUT, tuple(range(len(rows))), (), lasting))
    sizes = tuple(Storage(size * MIB) for _, size, _ in rows[:-1])
    return Problem("scattered", tuple(nodes), sizes, {"g": Group(8, True)})


def task_of(problem: Problem, headroom: str = "0") -> Task:
    return Task(problem, Options(headroom=headroom), int(LiveRanges(problem).profile(problem.original_order).max()))


def reserved_bytes(task: Task, order: Order) -> int:
    return requests_of(task.live_ranges, order).replayed(PLAIN).peak_reserved_bytes


def on_a_smaller_device(task: Task, capacity: int) -> Reserve:
    """What the original order reserves, but in less than it needs."""
    return replace(Reserve.of(task, PLAIN), capacity_bytes=capacity)


def test_a_walk_finds_the_order_in_which_what_lasts_lands_well() -> None:
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 560 * MIB)
    found = task.measured(task.problem.original_order)
    assert reserve.lacking(found.order) > 400 * MIB
    assert task.problem.names(reserve.lacking_at(found.order)) == ["big2"]
    for others in ((), (found.order,)):
        moved = wandered(reserve, found, found.step_us, 50, others)
        assert reserve.overdraft(moved.order) == NOTHING
        assert reserve.lacking_at(moved.order) == []
        assert wandered(reserve, found, found.step_us, 50, others) == moved  # the same each time
        assert wandered(reserve, found, found.step_us, 0, others) == found
        assert wandered(reserve, found, found.step_us - 1.0, 50, others) == found  # all steps are longer


def test_aimed_a_walk_goes_on_over_orders_that_lack_as_much() -> None:
    """On a device that is smaller than the largest request."""
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 500 * MIB)
    found = task.measured(task.problem.original_order)
    start = wandered(reserve, found, found.step_us, trials=200)
    least = reserve.lacking(start.order)
    assert 0 < least < reserve.lacking(found.order)
    assert wandered(reserve, start, start.step_us, trials=20) == start
    moved = wandered(reserve, start, start.step_us, 20, [found.order])
    assert reserve.lacking(moved.order) == least
    assert moved.order != start.order


def test_aimed_nothing_else_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 560 * MIB)
    found = task.measured(task.problem.original_order)
    monkeypatch.setattr(wander, "_near", lambda *_: slice(0, 0))
    assert wandered(reserve, found, found.step_us, 100, [found.order]) == found
    assert wandered(reserve, found, found.step_us, 100) != found


def test_moved_is_what_runs_shortly_before_and_a_little_behind() -> None:
    order, sizes = tuple(range(5000)), set[int]()
    for seed in range(50):
        near = order[wander._near(3000, order, random.Random(seed))]
        before, behind = 3000 - near[0], near[-1] - 3000
        assert behind == before // 4
        sizes.add(before)
    assert 10 <= min(sizes) < 20
    assert 500 < max(sizes) <= 1000
    assert sorted(sizes)[len(sizes) // 2] < 200  # more often few than many
    assert (0, 1, 2)[wander._near(1, (0, 1, 2), random.Random(0))] == (0, 1, 2)


def test_of_all_moves_those_are_kept_that_matter() -> None:
    """The scatter behind ``mm``; its wait close behind it would only stall, and what ``x`` does makes no difference."""
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 560 * MIB)
    order, rules = task.problem.original_order, neighbours(task.problem, ())
    big, _, _, x, scatter, _, _, _, wait, _ = order
    scatter_later = wander._moved(order, [(scatter, 1)], rules)
    moves = [(wait, -1), (scatter, 1), (wait, -2), (x, -1), (big, 3)]
    held = task.measured(wander._moved(order, moves, rules))
    assert reserve.overdraft(held.order) == NOTHING
    assert held.step_us > task.measured(scatter_later).step_us
    kept = wander._least_moved(reserve, held, order, moves, rules)
    assert kept == task.measured(scatter_later)


def test_a_node_goes_as_far_as_its_neighbours_admit() -> None:
    task = task_of(scattered())
    order, rules = task.problem.original_order, neighbours(task.problem, ())
    scatter = task.problem.names(order).index("scatter")

    def moved(distance: int) -> str:
        return " ".join(task.problem.names(wander._moved(order, [(scatter, distance)], rules)))

    assert moved(-9) == moved(0) == "big a b x scatter mm big2 y wait output"  # it needs x
    assert moved(1) == "big a b x mm scatter big2 y wait output"
    assert moved(9) == "big a b x mm big2 y scatter wait output"  # its wait needs it


@given(problems(models=("runtime",)), st.sampled_from((1.0, 1.1)), st.floats(0.3, 1.0), st.booleans())
@settings(max_examples=30)
def test_a_walk_lacks_no_more_and_keeps_to_budget_and_step(
    problem: Problem, longer: float, part: float, aimed: bool
) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem, "20%")
    reserve = Reserve.of(task, PLAIN)
    reserve = replace(reserve, capacity_bytes=int(part * reserve.capacity_bytes))
    found = task.measured(problem.original_order)
    others = [tuple(random_order(problem, 0)), found.order] if aimed else []
    moved = wandered(reserve, found, found.step_us * longer, 20, others)
    assert violation(problem, moved.order) is None
    assert moved.step_us <= found.step_us * longer
    assert task.within_budget(moved.order)
    assert reserve.lacking(moved.order) <= reserve.lacking(found.order)
    assert moved == task.measured(moved.order)


@given(problems(models=("runtime",)), st.integers(0, 2**32))
def test_an_order_breaks_nothing_where_no_device_lacks_anything(problem: Problem, seed: int) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem)
    reserve = Reserve.of(task, PLAIN)
    assert reserve.overdraft(problem.original_order) == NOTHING
    order = tuple(random_order(problem, seed))
    requests = requests_of(task.live_ranges, order)
    smallest, _, largest = reserve.devices
    broken, lacking = reserve.overdraft(order), Replays(requests, reserve.devices, PLAIN).lacking()
    assert bool(reserve.lacking_at(order)) == (lacking > 0)
    assert (broken == NOTHING) == (lacking == 0)
    assert requests.fits(smallest.capacity, PLAIN) == (Replays(requests, [smallest], PLAIN).lacking() == 0)
    over_bytes = reserved_bytes(task, order) - largest.capacity
    assert Replays(requests, [largest], PLAIN).lacking() == max(over_bytes, 0)
    assert reserve.lacking(order, lacking) == lacking
    assert lacking == 0 or reserve.lacking(order, lacking - 1) >= lacking


@pytest.mark.parametrize(
    ("percent", "moved"), [(0, "abcdefghijkl"), (50, "abcdefighjkl"), (75, "abcdefihgjkl"), (100, "abcdeifhgjkl")]
)
def test_a_part_of_an_order_goes_part_of_the_way_to_another(percent: int, moved: str) -> None:
    order, places = tuple(range(12)), ["iafbhcgedljk".index(letter) for letter in "abcdefghijkl"]
    found = wander._as_another(order, slice(5, 9), places, percent)
    assert "".join("abcdefghijkl"[v] for v in found) == moved
    assert wander._as_another(order, slice(9, 9), places, percent) == order
