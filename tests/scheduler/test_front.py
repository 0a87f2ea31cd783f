"""The front of orders that lack little and orders that are short: by hand."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from overlap_sched.peak_memory.allocator.trail import Lacking
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.front import ALIKE, STEP_WEIGHT, Front, FrontMember
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from tests.scheduler.test_wander import on_a_smaller_device, scattered, task_of

FAR = 1.01
"""For these tests."""


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.scheduler.front.FAR", FAR)


def member(step_us: float, lacking: int) -> FrontMember:
    return FrontMember((), step_us, lacking, (), Candidate((), step_us, 0))


def front_of(members: Iterable[FrontMember], enough_us: float = 100.0) -> Front:
    return Front(members, enough_us, 1000)


def test_kept_is_what_no_other_one_dominates() -> None:
    long, short, between = member(100.8, 0), member(99.0, 30), member(100.4, 10)
    front = front_of([long, short, between])
    assert front.members == [between, short, long]  # 1.0 + 1.6 %; 3.0 %; 3.2 %
    assert front_of([between, member(100.4, 11), member(100.5, 20)]).members == [between]
    front.keep(better := member(100.4, 10))
    assert [id(each) for each in front.members] == [id(better), id(short), id(long)]
    front.keep(best := member(98.0, 0))
    assert front.members == [best]


def test_how_much_an_order_may_lack() -> None:
    front = front_of([member(100.8, 0), member(100.4, 20)])
    assert front.most_lacking(99.0) == front.most_lacking(100.34) == NO_LIMIT
    assert front.most_lacking(100.4) == front.most_lacking(100.74) == 20
    assert front.most_lacking(100.8) == front.most_lacking(101.0) == 0
    assert front.most_lacking(101.1) == -1
    assert front_of([member(101.1, 0)]).members == []


def test_steps_that_are_almost_equal_are_alike() -> None:
    step_us = 100.0 * (1 + 10 * ALIKE)
    front = front_of([member(step_us - 0.01, 20)])
    assert front.most_lacking(step_us - 0.04) == 20
    assert front.most_lacking(step_us - 0.06) == NO_LIMIT
    assert front_of([member(1.0, 20)]).most_lacking(100.0) == 20  # both are short enough
    assert front_of([member(100.0, 20)]).most_lacking(1.0) == 20


def test_where_less_is_enough_some_are_too_long() -> None:
    front = front_of([member(100.8, 0), member(100.4, 20), member(99.0, 30)]).shorter(100.5 / FAR)
    assert front.enough_us == 100.5 / FAR
    assert sorted(each.step_us for each in front.members) == [99.0, 100.4]


def test_what_is_near_the_goal_is_taken_more_often() -> None:
    front, rng = front_of([member(100.8, 0), member(100.4, 10), member(99.0, 30)]), random.Random(0)
    picked = Counter(front.pick(rng).step_us for _ in range(3000))
    assert picked[100.4] > 1.3 * picked[99.0] > 1.3 * picked[100.8] > 500


def test_the_distance_is_what_is_lacking_and_what_is_too_long() -> None:
    longer, lacking = member(100.5, 0), member(100.0, 5 * STEP_WEIGHT - 1)
    assert front_of([longer, lacking]).members == [lacking, longer]
    lacking = member(100.0, 5 * STEP_WEIGHT + 1)
    assert front_of([longer, lacking]).members == [longer, lacking]


def test_a_graph_that_takes_no_time() -> None:
    front = front_of([member(0.0, 20)], 0.0)
    assert front.most_lacking(0.0) == 20
    assert front.most_lacking(1.0) == -1
    assert front.shorter(0.0).members == front.members


def test_it_is_made_of_those_that_break_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks as much as one that is as short is not looked at; what lacks nothing by luck alone counts as more."""
    task = task_of(scattered())
    order = task.problem.original_order
    reserve, looked = on_a_smaller_device(task, 560 * MIB), list[Order]()
    lacking = Reserve.lacking

    def noted(self: Reserve, order: Order) -> Lacking:
        looked.append(order)
        return lacking(self, order)

    monkeypatch.setattr(Reserve, "lacking", noted)
    found = task.measured(order)
    broken = reserve.overdraft(order)
    worse = broken._replace(over_bytes=broken.over_bytes + 1)
    front = Front.of(reserve, [(broken, found), (broken, found), (worse, found)], found.step_us)
    assert len(looked) == 1
    assert [each.lacking for each in front.members] == [reserve.lacking(order).lent_bytes]
    assert front.members[0].made_from is found
    original = Reserve.of(task, PLAIN)
    lucky = Front.of(original, [(Overdraft(False, 0, 5, 5), found)], found.step_us)
    assert [each.lacking for each in lucky.members] == [5]
    assert [each.lacking for each in Front.of(original, [(NOTHING, found)], found.step_us).members] == [0]
