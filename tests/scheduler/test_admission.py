"""Admission against recomputation from scratch; when refused nodes come back."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import Problem
from overlap_sched.scheduler.admission import (
    LOWEST,
    THIS_STEP,
    CompletionProfile,
    Obstacle,
)
from overlap_sched.scheduler.ready import ReadyList
from overlap_sched.scheduler.task import Reference
from overlap_sched.simulate.ledger import LiveRanges
from tests.support.graphs import problems
from tests.support.oracle import random_order, rules

MIB = 2**20


def check(memory: CompletionProfile, done: list[int]) -> None:
    """All invariants: the open positions equal the profile of `done` followed by the rest in reference order."""
    problem = memory.reference.problem
    rest = [v for v in memory.order if v not in set(done)]
    profile = memory_profile(problem, [*done, *rest])
    for k, v in enumerate(rest):
        at = memory.position[v]
        assert memory.profile[at] == profile[len(done) + k], (done, v)
        if memory.step_of is not None:
            assert memory.step_of[at] == len(done) + k, (done, v)
    assert all(memory.profile[memory.position[v]] < LOWEST // 2 for v in done)
    alloc_bytes = memory.alloc_bytes[rest[0]] if rest else 0
    assert memory.live_bytes + alloc_bytes == (profile[len(done)] if rest else LiveRanges(problem).end_bytes)
    assert memory.first == min((memory.position[v] for v in rest), default=len(memory.order))


@given(problems(), st.integers(0, 1000), st.booleans(), st.integers(0, 8))
def test_profile_equals_recomputation_and_admission_is_exact(
    problem: Problem, seed: int, positional: bool, headroom: int
) -> None:
    reference = random_order(problem, seed)
    profile = memory_profile(problem, reference)
    limit = np.array(profile if positional else max(profile), dtype=np.int64) + headroom
    memory = CompletionProfile(Reference(problem, reference), limit)
    assert list(memory.profile) == profile
    before, done, draw = rules(problem), [], random.Random(seed)
    while len(done) < len(reference):
        ready = [v for v in reference if v not in done and before[v] <= set(done)]
        admitted = []
        for v in ready:
            rest = [w for w in reference if w not in {*done, v}]
            completion = memory_profile(problem, [*done, v, *rest])[len(done) :]
            budget = np.broadcast_to(limit, len(reference))[len(done) :]
            over = max(int(live - allowed) for live, allowed in zip(completion, budget, strict=True))
            assert memory.admits(v) == (over <= 0), (done, v)
            if over <= 0:
                admitted.append(v)
            else:
                obstacle = memory.obstacle_of(v)
                assert obstacle is not None
                assert 0 < obstacle.over_bytes <= over
                assert 0 < memory.refusal(v, obstacle).over_bytes <= over
        assert reference[memory.first] in admitted  # the guarantee
        v = draw.choice(admitted)
        low = memory.profile.copy()
        lowered = memory.run(v)
        fell = {at for at in range(len(reference)) if memory.profile[at] < low[at] and at != memory.position[v]}
        assert fell <= {at for begin, end in lowered for at in range(begin, end)}
        done.append(v)
        check(memory, done)
    assert memory.peak_bytes == max(memory_profile(problem, done))


def test_reference_profile_of_the_example() -> None:
    profile = Reference(EXAMPLE, EXAMPLE.original_order).profile
    assert [int(b) // MIB for b in profile] == [5, 5, 13, 13, 17, 21, 21, 14, 14, 6]


def test_a_refusal_names_bytes_and_place() -> None:
    memory = CompletionProfile(Reference(EXAMPLE, EXAMPLE.original_order), np.array(21 * MIB))
    for v in (0, 1, 2, 4):
        assert memory.admits(v)
        memory.run(v)
    # dw (8 MiB) while `full` (8), g, x and w are live: 25 at this very step, and still at dgrad
    obstacle = memory.obstacle_of(6)
    assert obstacle == (4 * MIB, 5)
    assert memory.refusal(6, obstacle) == (4 * MIB, 5)
    memory.run(3)
    assert memory.admits(5)


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
