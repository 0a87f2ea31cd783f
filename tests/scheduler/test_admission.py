"""The completion profile against a recomputation from scratch, after every step."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.scheduler.admission import LOWEST, CompletionProfile, PositionalProfile, completion_profile
from overlap_sched.scheduler.task import Reference
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
        if isinstance(memory, PositionalProfile):
            assert memory.step_of[at] == len(done) + k, (done, v)
    assert all(memory.profile[memory.position[v]] < LOWEST // 2 for v in done)
    assert memory.first == min((memory.position[v] for v in rest), default=len(memory.order))


@given(problems(), st.integers(0, 1000), st.booleans(), st.integers(0, 8))
def test_profile_equals_recomputation_and_admission_is_exact(
    problem: Problem, seed: int, positional: bool, headroom: int
) -> None:
    reference = random_order(problem, seed)
    profile = memory_profile(problem, reference)
    limit = np.array(profile if positional else max(profile), dtype=np.int64) + headroom
    memory = completion_profile(Reference(problem, reference), limit)
    assert list(memory.profile.array(0, len(profile))) == profile
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
        low = memory.profile.array(0, len(reference))
        lowered = memory.run(v)
        fell = {at for at in range(len(reference)) if memory.profile[at] < low[at] and at != memory.position[v]}
        assert fell <= {at for begin, end in lowered for at in range(begin, end)}
        done.append(v)
        check(memory, done)
        assert memory.live_bytes == live_bytes(problem, done)
    assert memory.peak_bytes == max(memory_profile(problem, done))


def live_bytes(problem: Problem, done: list[int]) -> int:
    """Bytes live between steps: what the next step would find if it allocated nothing."""
    rest = [v for v in random_order(problem, 0) if v not in set(done)]
    if not rest:
        return end_bytes(problem)
    before = rules(problem)
    v = next(v for v in rest if before[v] <= set(done))
    allocated = 0
    if problem.nodes[v].kind != "input":
        allocated = sum(problem.storages[s].bytes for s in problem.nodes[v].alloc)
    return memory_profile(problem, [*done, v, *[w for w in rest if w != v]])[len(done)] - allocated


def end_bytes(problem: Problem) -> int:
    """What is left when all has run: pinned, unused inputs, what an output allocates and nothing uses."""
    total = 0
    for node in problem.nodes:
        for s in node.alloc:
            used = any(s in other.use for other in problem.nodes)
            size, pinned = problem.storages[s]
            if (used and pinned) or (not used and node.kind in ("input", "output")):
                total += size
    return total


def test_reference_profile_of_the_example() -> None:
    profile = Reference(EXAMPLE, EXAMPLE.original_order).profile
    assert [int(b) // MIB for b in profile] == [5, 5, 13, 13, 17, 21, 21, 14, 14, 6]


def test_a_refusal_names_bytes_and_place() -> None:
    memory = CompletionProfile(Reference(EXAMPLE, EXAMPLE.original_order), 21 * MIB)
    for v in (0, 1, 2, 4):
        assert memory.admits(v)
        memory.run(v)
    # dw (8 MiB) while `full` (8), g, x and w are live: 25 at this very step, and still at dgrad
    obstacle = memory.obstacle_of(6)
    assert obstacle == (4 * MIB, 5)
    assert memory.refusal(6, obstacle) == (4 * MIB, 5)
    memory.run(3)
    assert memory.admits(5)
