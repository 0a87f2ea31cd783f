"""The sets of ready nodes: what the budget refused comes back the moment that its obstacle is gone, not before."""

from types import SimpleNamespace

import pytest

from overlap_sched import EXAMPLE
from overlap_sched.scheduler.admission import THIS_STEP, Obstacle
from overlap_sched.scheduler.ready import ReadyList
from overlap_sched.scheduler.task import Reference

MM, GATHER = 4, 2


def ready_list(obstacle: Obstacle) -> tuple[ReadyList, SimpleNamespace]:
    """With the two nodes ready, and the second just refused."""
    reference = Reference(EXAMPLE, EXAMPLE.original_order)
    memory = SimpleNamespace(
        position=reference.position, profile={5: 10}, first=1,
        alloc_bytes=reference.live_ranges.alloc_bytes, room_bytes=lambda: memory.room,
        room=0,
    )  # fmt: skip
    ready = ReadyList(reference, reference.priorities(), memory)  # type: ignore[arg-type]
    ready.add(MM)
    ready.add(GATHER)
    ready.block(GATHER, obstacle)
    return ready, memory


@pytest.mark.parametrize(("bytes_there", "back"), [(9, []), (8, [GATHER]), (7, [GATHER])])
def test_what_is_refused_for_two_bytes_comes_back_two_bytes_lower(bytes_there: int, back: list[int]) -> None:
    ready, memory = ready_list(Obstacle(2, 5))
    memory.profile[5] = bytes_there
    assert ready.unblocked([(4, 6)]) == back
    assert ready.unblocked([(4, 6)]) == []


@pytest.mark.parametrize(("first", "back"), [(4, []), (5, []), (6, [GATHER])])
def test_or_when_the_position_that_refused_it_has_been_passed(first: int, back: list[int]) -> None:
    ready, memory = ready_list(Obstacle(2, 5))
    memory.first = first
    assert ready.unblocked([]) == back


@pytest.mark.parametrize(("missing", "back"), [(1, []), (0, [GATHER])])
def test_what_was_too_large_for_a_step_waits_for_room(missing: int, back: list[int]) -> None:
    ready, memory = ready_list(Obstacle(3, THIS_STEP))
    memory.room = memory.alloc_bytes[GATHER] - missing
    assert ready.unblocked([]) == back


def test_what_is_blocked_is_in_no_other_set() -> None:
    ready, _ = ready_list(Obstacle(2, 5))
    assert [key.node for key in ready.paths] == [MM]
    assert [len(queue) for queue in ready.launches.values()] == [0]
    assert list(ready.compute) == [MM]
    assert [key.node for key in ready.blocked] == [GATHER]
