"""The judges against brute force, definitions and an independent implementation."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given

from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import Promise, measure, memory_profile, peak_memory, violation
from overlap_sched.judge.validate import broken_promise as broken
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from overlap_sched.problem.file import read_problem, write_problem
from tests.support.examples import examples, module_at
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, JUDGE, all_orders, peak_by_definition, random_order, step_by_definition

MIB = 2**20


def broken_promise(problem: Problem, order: Sequence[int], options: Options) -> str | None:
    before = measure(problem, problem.original_order)
    base = max(before.profile)
    headroom, preserve = headroom_bytes(options.headroom, base), options.preserve_collective_order
    promise = Promise(base, headroom, options.budget, preserve, options.concurrent_groups, options.pins)
    return broken(problem, before, measure(problem, order), promise)


HIDDEN = (0, 1, 2, 4, 3, 6, 7, 5, 8, 9)  # the reordered example of the problem module's docstring


def test_example_replay_is_the_one_drawn() -> None:
    original, hidden = replay(EXAMPLE, EXAMPLE.original_order), replay(EXAMPLE, HIDDEN)
    assert (original.step_us, original.exposed_us) == (190.0, 80.0)
    assert (hidden.step_us, hidden.exposed_us) == (120.0, 10.0)
    assert (hidden.start_us[7], hidden.finish_us[7], hidden.stall_us[8]) == (80.0, 120.0, 10.0)


def test_example_profile_is_the_one_drawn() -> None:
    profile = memory_profile(EXAMPLE, EXAMPLE.original_order)
    assert [b // MIB for b in profile] == [5, 5, 13, 13, 17, 21, 21, 14, 14, 6]
    assert peak_memory(EXAMPLE, EXAMPLE.original_order) == (21 * MIB, 5)


def test_example_bound() -> None:
    # all compute is 110; mm, wgrad, then the scatter: 120
    assert lower_bound_us(EXAMPLE) == 120.0


def test_a_node_that_only_needs_the_launch_does_not_wait_for_it() -> None:
    launch = Node("launch", Kind.COLLECTIVE, time_us=100.0, group="fsdp")
    after = Node("after", Kind.COMPUTE, deps=(0,), time_us=1.0)
    problem = Problem("launch only", (launch, after), (), EXAMPLE.groups)
    assert replay(problem, (0, 1)).step_us == lower_bound_us(problem) == 100.0


@given(problems())
def test_liveness_and_replay_follow_their_definitions(problem: Problem) -> None:
    for seed in range(3):
        order = random_order(problem, seed)
        assert violation(problem, order) is None
        assert memory_profile(problem, order) == peak_by_definition(problem, order)
        assert replay(problem, order).step_us == pytest.approx(step_by_definition(problem, order), rel=1e-12)


@given(problems(max_steps=6))
def test_validator_accepts_exactly_the_valid_orders(problem: Problem) -> None:
    if len(problem.nodes) > 6:
        return
    valid = {tuple(order) for order in all_orders(problem)}
    order = list(problem.original_order)
    for a in range(len(order)):
        for b in range(a):
            swapped = list(order)
            swapped[a], swapped[b] = order[b], order[a]
            assert (violation(problem, swapped) is None) == (tuple(swapped) in valid)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), "output never runs"),
        ((0, 1, 2, 3, 4, 5, 6, 7, 8, 8), "grad runs twice, at positions 8 and 9"),
        ((0, 1, 2, 3, 4, 5, 6, 7, 8, 10), "position 9 holds id 10, which is not a node of the problem"),
        ((0, 1, 2, 3, 5, 4, 6, 7, 8, 9), "dgrad runs before mm, on which it depends"),
        ((0, 1, 3, 2, 4, 5, 6, 7, 8, 9), "full runs before gather, on which it depends"),
        ((0, 1, 2, 3, 4, 6, 7, 8, 9, 5), "output runs before dgrad, on which it depends"),
    ],
)
def test_violations_in_words(order: tuple[int, ...], said: str) -> None:
    assert violation(EXAMPLE, order) == said


def test_rules_that_are_not_listed_dependencies() -> None:
    launch = Node("launch", Kind.COLLECTIVE, alloc=(0,), time_us=1.0, group="fsdp")
    wait = Node("wait", Kind.WAIT, use=(0,), collective=0)
    late = Node("late", Kind.COMPUTE)
    output = Node("output", Kind.OUTPUT)
    problem = Problem("implied", (launch, wait, late, output), EXAMPLE.storages[:1], EXAMPLE.groups)
    assert violation(problem, (1, 0, 2, 3)) == "wait waits for launch before it is launched"
    assert violation(problem, (0, 1, 3, 2)) == "output runs before late, which must not follow an output"
    early = (launch, late, wait._replace(collective=0), output)  # what is listed last need not be what runs last
    problem = Problem("implied", early, EXAMPLE.storages[:1], EXAMPLE.groups)
    assert violation(problem, (0, 2, 3, 1)) == "output runs before late, which must not follow an output"
    user = Node("user", Kind.COMPUTE, use=(0,))
    problem = Problem("storage", (launch, user), EXAMPLE.storages[:1], EXAMPLE.groups)
    assert violation(problem, (1, 0)) == "user uses storage 0 before it is allocated"


def test_broken_promises_in_words() -> None:
    assert broken_promise(EXAMPLE, EXAMPLE.original_order, Options(budget="profile")) is None
    assert broken_promise(EXAMPLE, HIDDEN, Options()) == (
        "26214400 bytes are live at position 5 (wgrad), 4194304 above the peak budget"
    )
    assert broken_promise(EXAMPLE, HIDDEN, Options(headroom="5MiB")) is None
    assert broken_promise(EXAMPLE, HIDDEN, Options(headroom="5MiB", budget="profile")) == (
        "27262976 bytes are live at position 7 (dgrad), 7340032 above the profile budget"
    )
    problem = two_launches()
    assert broken_promise(problem, (1, 0), Options(preserve_collective_order="group")) == (
        "b is launched before a, unlike originally"
    )
    assert broken_promise(problem, (1, 0), Options()) is None


def test_headroom_counts_from_the_base_where_there_is_one() -> None:
    original = measure(EXAMPLE, EXAMPLE.original_order)
    assert broken(EXAMPLE, original, original, Promise(21 * MIB)) is None
    assert broken(EXAMPLE, original, original, Promise(20 * MIB)) == (
        "22020096 bytes are live at position 5 (dgrad), 1048576 above the peak budget"
    )


@pytest.mark.parametrize(("pinned", "live"), [(False, [8, 0]), (True, [8, 8])])
def test_what_only_its_maker_uses_goes_once(pinned: bool, live: list[int]) -> None:
    make = Node("make", Kind.COMPUTE, alloc=(0,), use=(0,))
    problem = Problem("own", (make, Node("next", Kind.COMPUTE, deps=(0,))), (Storage(8, pinned),), EXAMPLE.groups)
    assert memory_profile(problem, (0, 1)) == live


def test_what_an_output_makes_stays() -> None:
    output = Node("output", Kind.OUTPUT, alloc=(0,))
    problem = Problem("output", (output, Node("next", Kind.COMPUTE)), (Storage(8),), EXAMPLE.groups)
    assert memory_profile(problem, (0, 1)) == [8, 8]


def two_launches() -> Problem:
    a = Node("a", Kind.COLLECTIVE, time_us=1.0, group="fsdp")
    return Problem("two", (a, a._replace(name="b")), (), EXAMPLE.groups)


def test_a_slower_order_breaks_the_promise() -> None:
    gather = Node("gather", Kind.COLLECTIVE, time_us=10.0, group="fsdp")
    compute = Node("compute", Kind.COMPUTE, time_us=10.0)
    problem = Problem("slower", (gather, compute), (), EXAMPLE.groups)
    assert broken_promise(problem, (1, 0), Options()) == "the step takes 20.0 us, longer than the original's 10.0 us"
    problem = replace(problem, nodes=(gather, compute._replace(time_us=2**-20)))  # by a tenth of a millionth
    assert broken_promise(problem, (1, 0), Options()) is not None


def judge() -> ModuleType:
    if not JUDGE.exists():
        pytest.skip("the independent judge is not beside this checkout (../shared/tools/judge.py)")
    return module_at(JUDGE)


@given(problems(models=("runtime",)))
@examples(50)
def test_judges_agree_on_small_problems_too(tmp_path_factory: pytest.TempPathFactory, problem: Problem) -> None:
    path = Path(tmp_path_factory.mktemp("problem")) / "random.json.gz"
    write_problem(problem, path)
    other = judge()
    theirs = other.load(path)
    for seed in range(3):
        order = random_order(problem, seed)
        assert violation(problem, order) is other.violation(theirs, order) is None
        assert peak_memory(problem, order) == other.peak_memory(theirs, order)
        timeline, (step_us, exposed_us) = replay(problem, order), other.replay(theirs, order)
        assert timeline.step_us == pytest.approx(step_us, rel=1e-9)
        assert timeline.exposed_us == pytest.approx(exposed_us, rel=1e-6, abs=1e-3)
    assert json.loads(json.dumps(problem.names(problem.original_order)))[0] == problem.nodes[0].name


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(INSTANCES.glob("*.json.gz")), ids=lambda path: path.name)
def test_judges_agree_on_real_graphs(path: Path) -> None:
    other, problem = judge(), read_problem(path)
    theirs, order = other.load(path), random_order(problem, 0)
    assert violation(problem, order) is other.violation(theirs, order) is None
    assert peak_memory(problem, order) == other.peak_memory(theirs, order)
    assert replay(problem, order).step_us == pytest.approx(other.replay(theirs, order)[0], rel=1e-9)
    assert lower_bound_us(problem) == pytest.approx(other.lower_bound(theirs), rel=1e-6)
