"""Random walks: by hand on a small problem, and promises on random graphs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.allocator.reserved import AllocatorDevice, requests_of
from overlap_sched.peak_memory.allocator.trail import Trail
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, PLAIN
from overlap_sched.scheduler import wander
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.front import FAR, Front, FrontMember
from overlap_sched.scheduler.moves import Moves
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from overlap_sched.scheduler.wander import BATCH, MOST, MOST_SHORTER, Trials, wandered
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.examples import examples
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


def walked(reserve: Reserve, start: Order, enough_us: float, trials: int) -> list[Candidate]:
    found = reserve.task.measured(start)
    return wandered(reserve, [(reserve.overdraft(start), found)], found, [start], enough_us, trials)


def noted_moves(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """What walks move to from now on, in turn."""
    tried, moved = list[Order](), Moves.moved

    def noted(self: Moves, start: FrontMember, front: Front) -> Order:
        tried.append(moved(self, start, front))
        return tried[-1]

    monkeypatch.setattr(Moves, "moved", noted)
    return tried


class NotedTrials(Trials):
    """With how many of them were moves; looks at all that an order breaks are the others."""

    moves = 0

    def count(self, tried: int, least: int) -> None:
        self.moves += tried == 1
        super().count(tried, least)


def noted_trials(monkeypatch: pytest.MonkeyPatch) -> list[NotedTrials]:
    """How many orders walks try from now on, in turn: to find one that fits, then a shorter one."""
    made = list[NotedTrials]()

    def noted(most: int, most_in_vain: int) -> NotedTrials:
        made.append(NotedTrials(most, most_in_vain))
        return made[-1]

    monkeypatch.setattr(wander, "Trials", noted)
    return made


def test_a_walk_finds_the_order_in_which_what_lasts_lands_well() -> None:
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 560 * MIB)
    start = task.measured(task.problem.original_order)
    lacking = reserve.lacking(start.order)
    assert lacking.lent_bytes > 400 * MIB
    assert [task.problem.nodes[v].name for v in lacking.storages] == ["big2"]
    found = walked(reserve, start.order, start.step_us, 100)
    assert reserve.overdraft(found[-1].order) == NOTHING
    assert found[-1].step_us <= start.step_us
    assert reserve.lacking(found[-1].order).storages == []
    assert walked(reserve, start.order, start.step_us, 100) == found  # the same each time
    assert walked(reserve, start.order, start.step_us, 0) == [start]
    assert walked(reserve, start.order, 0.0, 100) == []  # too long to start from


def test_a_walk_starts_from_what_is_longer_than_it_may_be() -> None:
    """What stalls is 5 us longer; the walk brings it down, though it lacks nothing."""
    task = task_of(scattered(), "10%")
    reserve = Reserve.of(task, PLAIN)
    names = task.problem.names(task.problem.original_order)
    late = [name for name in names if name not in ("x", "scatter", "wait", "output")]
    order = tuple(names.index(name) for name in (*late, "x", "scatter", "wait", "output"))
    start, best = task.measured(order), task.measured(task.problem.original_order)
    assert start.step_us > best.step_us
    assert walked(reserve, order, best.step_us, 0) == []
    enough_us = start.step_us / (FAR - 0.01)
    assert [found.order for found in walked(reserve, order, enough_us, 0)] == [order]
    found = wandered(reserve, [(reserve.overdraft(order), start)], best, [], enough_us, 200)
    assert found[0].step_us <= enough_us


def test_once_an_order_breaks_nothing_a_walk_goes_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(scattered())
    reserve, tried, made = on_a_smaller_device(task, 560 * MIB), noted_moves(monkeypatch), noted_trials(monkeypatch)
    monkeypatch.setattr(wander, "HOPELESS", math.inf)
    start = task.measured(task.problem.original_order)
    walked(reserve, start.order, start.step_us, 1000)
    fit = (reserve.overdraft(order) == NOTHING and task.measured(order).step_us <= start.step_us for order in tried)
    first = next(i for i, fits in enumerate(fit, 1) if fits)
    to_fit, shorter = made
    assert (to_fit.most, to_fit.most_in_vain) == (MOST * 1000, 1000)
    assert (shorter.most, shorter.most_in_vain) == (MOST_SHORTER * 1000, 1000)
    assert shorter.in_vain >= 1000 or shorter.tried == MOST_SHORTER * 1000
    assert len(tried) == first + shorter.moves


def test_a_walk_ends_where_too_much_is_lacking_after_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    task, tried, made = task_of(scattered()), noted_moves(monkeypatch), noted_trials(monkeypatch)
    start = task.measured(task.problem.original_order)
    walked(on_a_smaller_device(task, 100 * MIB), start.order, start.step_us, 300)  # the largest result has 520
    assert 100 <= len(tried) <= 100 + BATCH
    tried.clear()
    walked(on_a_smaller_device(task, 500 * MIB), start.order, start.step_us, 300)
    assert 300 <= made[-1].in_vain < 300 + BATCH
    assert 300 <= len(tried) == made[-1].moves <= MOST * 300


def test_trials_go_on_while_something_is_gained() -> None:
    trials = Trials(most=25, most_in_vain=10)
    for tried, least, goes_on in ((3, 100, True), (9, 100, True), (1, 100, False), (1, 99, True), (10, 99, False)):
        trials.count(tried, least)
        assert trials.go_on(hopeless=1000) == goes_on
    trials.count(1, 98)  # 25 in all
    assert not trials.go_on(hopeless=1000)


def test_trials_end_where_there_is_no_hope_by_a_third_of_those_that_may_be_in_vain() -> None:
    trials = Trials(most=1000, most_in_vain=100)
    trials.count(32, 51)
    assert trials.go_on(hopeless=50)
    trials.count(1, 51)
    assert not trials.go_on(hopeless=50)
    trials.count(1, 50)
    assert trials.go_on(hopeless=50)


def test_a_larger_device_on_which_an_order_fails_is_looked_at_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order is said to fail on a device that is too small for all: from then on it lacks what it lacks there."""
    task = task_of(scattered())
    reserve, devices = on_a_smaller_device(task, 560 * MIB), list[int]()
    start, trail = task.measured(task.problem.original_order), Reserve.trail

    def noted(self: Reserve, order: Order, more: Sequence[AllocatorDevice] = ()) -> Trail:
        devices.append(len(more))
        return trail(self, order, more)

    broken = reserve.overdraft(start.order)
    monkeypatch.setattr(Reserve, "trail", noted)
    unlucky = iter(AllocatorDevice(capacity * MIB) for capacity in (400, 401, 402, 403))
    monkeypatch.setattr(Reserve, "looked_at", lambda self, order: (Overdraft(False, 0, 7, 7), [next(unlucky)]))
    found = wandered(reserve, [(broken, start)], start, [], start.step_us, 200)
    assert devices == sorted(devices)
    assert devices[-1] == 1  # none lacks nothing any more, so that none is looked at again
    lacking = [
        trail(reserve, each.order, [AllocatorDevice(400 * MIB)]).lacking_of(each.order).lent_bytes for each in found
    ]
    assert (
        0 < min(lacking) < trail(reserve, start.order, [AllocatorDevice(400 * MIB)]).lacking_of(start.order).lent_bytes
    )


def test_what_fits_by_luck_alone_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks nothing, but more memory would be worse: a walk goes on, and keeps it as what lacks that much."""
    task = task_of(scattered())
    reserve = on_a_smaller_device(task, 560 * MIB)
    start = task.measured(task.problem.original_order)
    broken = reserve.overdraft(start.order)
    monkeypatch.setattr(Reserve, "looked_at", lambda self, order: (Overdraft(False, 0, 7, 7), []))
    found = wandered(reserve, [(broken, start)], start, [], start.step_us, 200)
    assert found
    assert all(reserve.lacking(each.order).lent_bytes == 0 for each in found)


@given(problems(models=("runtime",)), st.sampled_from((1.0, 1.1)), st.floats(0.3, 1.0))
@examples(30)
def test_a_walk_keeps_to_budget_and_step_and_loses_nothing(problem: Problem, longer: float, part: float) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem, "20%")
    reserve = Reserve.of(task, PLAIN)
    reserve = replace(reserve, capacity_bytes=int(part * reserve.capacity_bytes))
    starts = [task.measured(order) for order in (problem.original_order, tuple(random_order(problem, 0)))]
    starts = [start for start in starts if task.within_budget(start.order)]
    enough_us = starts[0].step_us * longer
    tried = [(reserve.overdraft(start.order), start) for start in starts]
    found = wandered(reserve, tried, starts[0], [starts[-1].order], enough_us, 20)
    least = min(reserve.lacking(start.order).lent_bytes for start in starts if start.step_us <= enough_us)
    assert min(reserve.lacking(each.order).lent_bytes for each in found if each.step_us <= enough_us) <= least
    assert [each.step_us for each in found] == sorted(each.step_us for each in found)
    for each in found:
        assert violation(problem, each.order) is None
        assert each.step_us <= enough_us * FAR
        assert task.within_budget(each.order)
        assert each == task.measured(each.order)


@given(problems(models=("runtime",)), st.integers(0, 2**32))
def test_an_order_breaks_nothing_where_no_device_lacks_anything(problem: Problem, seed: int) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem)
    reserve = Reserve.of(task, PLAIN)
    assert reserve.overdraft(problem.original_order) == NOTHING
    order = tuple(random_order(problem, seed))
    requests = requests_of(task.live_ranges, order)
    smallest, _, largest = reserve.devices

    def lacking_on(device: AllocatorDevice) -> int:
        return Trail(task.live_ranges, order, [device], PLAIN).lacking_of(order).lent_bytes

    broken, lacking = reserve.overdraft(order), reserve.lacking(order).lent_bytes
    assert (broken == NOTHING) == (lacking == 0)
    assert requests.fits(smallest.capacity, PLAIN) == (lacking_on(smallest) == 0)
    over_bytes = reserved_bytes(task, order) - largest.capacity
    assert lacking_on(largest) == max(over_bytes, 0)
