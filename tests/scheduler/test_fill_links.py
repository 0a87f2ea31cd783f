"""Launches moved to where the busiest link is idle: by hand, and promises on random graphs."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.options import Preserve
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import PLAIN
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler import fill_links as under_test
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.fill_links import MOST_IN_VAIN, IdlePlace, busiest_link, fill_links, idle_places
from overlap_sched.scheduler.needs import Overdraft, Reserve
from overlap_sched.scheduler.stage import Context
from tests.judge.test_contention import contended, contentions
from tests.scheduler.test_reserve import large_layers
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition
from tests.support.stages import with_stage


def beside_a_large_node(large_us: float = 30.0, cast_us: float = 0.0) -> Problem:
    """The picture of the module: all take 10 us but for ``c`` and ``large``, beside which 10 bytes more have no room.

    ::

        compute | mm |               | x needed | large     |   | d needed |      110 us
        link    | a | c         | x  |                      | d |

        compute | mm |   | x needed | large     |   | d needed |                   80 us
        link    | a  | x |          | c         | d |
    """
    gather, large = ("all_gather", "g"), Node("large", Kind.COMPUTE, (5,), (3,), (), large_us)
    nodes = (
        Node("a", Kind.COLLECTIVE, (), (0,), (), 10.0, *gather),
        Node("c", Kind.COLLECTIVE, (), (1,), (), 30.0, *gather),
        Node("mm", Kind.COMPUTE, time_us=10.0),
        Node("x", Kind.COLLECTIVE, (2,), (2,), (), 10.0, *gather),
        Node("wait x", Kind.WAIT, (3,), (), (2,), collective=3),
        Node("x needed", Kind.COMPUTE, (4,), (), (2,), 10.0),
        large,
        Node("cast", Kind.COMPUTE, (2,), time_us=cast_us),
        Node("d", Kind.COLLECTIVE, (7,), (4,), (), 10.0, *gather),
        Node("wait d", Kind.WAIT, (8,), (), (4,), collective=8),
        Node("d needed", Kind.COMPUTE, (6, 9), (), (4,), 10.0),
        Node("wait c", Kind.WAIT, (1,), (), (1,), collective=1),
        Node("wait a", Kind.WAIT, (0,), (), (0,), collective=0),
        Node("output", Kind.OUTPUT, (10, 11, 12), (), (0, 1)),
    )
    return Problem("large", nodes, tuple(Storage(size) for size in (10, 10, 10, 60, 10)), {"g": Group(8, True)})


def filled(problem: Problem, headroom: int = 0, effort: int = 4) -> tuple[list[str], float]:
    """The order that comes of the original one, by names, and its step."""
    task = Task(
        problem,
        Options(headroom=headroom, effort=effort),
        max(peak_by_definition(problem, list(problem.original_order))),
    )
    made = fill_links(task, task.measured(problem.original_order), None)
    return [problem.nodes[v].name for v in made.order], made.step_us


def test_what_is_not_needed_soon_runs_beside_the_large_node() -> None:
    problem = beside_a_large_node()
    assert idle_places(problem, problem.original_order, [0, 1, 3, 8], 0.1) == [IdlePlace(40.0, 5)]
    assert filled(problem, effort=0) == ([node.name for node in problem.nodes], 110.0)
    order, step_us = filled(problem)
    assert order.index("x") < order.index("c") < order.index("large") < order.index("d")
    assert step_us == 80.0


def test_what_has_room_is_brought_forward_with_what_prepares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "FORWARD", 1.0)
    problem = beside_a_large_node()
    assert filled(problem)[1] == 110.0
    order, step_us = filled(problem, headroom=10)
    assert order[order.index("wait x") + 1 :][:4] == ["cast", "d", "x needed", "large"]
    assert step_us == 100.0


def test_no_expensive_compute_is_brought_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "FORWARD", 1.0)
    assert filled(beside_a_large_node(large_us=20.0, cast_us=10.0), headroom=10)[1] == 110.0


def test_little_is_brought_forward_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "FORWARD", 1.0)
    problem = beside_a_large_node()
    nodes = list(problem.nodes)
    nodes[7] = Node("cast", Kind.WAIT, (0,), (), (0,), collective=0)
    assert filled(replace(problem, nodes=tuple(nodes)), headroom=10)[1] == 110.0
    monkeypatch.setattr(under_test, "MOST_NODES", 1)
    assert filled(problem, headroom=10)[1] == 110.0


def test_a_link_is_busy_until_the_last_of_its_groups_is_done() -> None:
    """Beside ``c``, which takes 30 us, another group gets through 10 us of work in 20; after both, the link is idle."""
    problem = beside_a_large_node()
    nodes = list(problem.nodes)
    nodes[3] = nodes[3]._replace(group="h")
    groups = {"g": Group(8, True), "h": Group(8, True)}
    problem = replace(problem, nodes=tuple(nodes), groups=groups, contention=Contention(links={"g": "w", "h": "w"}))
    timeline = replay(problem, problem.original_order)
    assert (timeline.start_us[3], timeline.finish_us[3], timeline.finish_us[1]) == (10.0, 30.0, 50.0)
    assert [place.idle_us for place in idle_places(problem, problem.original_order, [0, 1, 3, 8], 0.1)] == [20.0]


@pytest.mark.parametrize("worse", [0, 1])
def test_none_is_taken_that_lacks_more_for_the_allocator(monkeypatch: pytest.MonkeyPatch, worse: int) -> None:
    """All others are said to lack a byte more than the original one, or as much."""
    problem = beside_a_large_node()
    task = Task(problem, Options(), 80)
    original = task.measured(problem.original_order)

    def overdraft(self: Reserve, order: Order) -> Overdraft:
        return Overdraft(False, 0, lacks := 7 + worse * (order != original.order), lacks)

    monkeypatch.setattr(Reserve, "overdraft", overdraft)
    made = fill_links(task, original, Reserve.of(task, PLAIN))
    assert made.step_us == (110.0 if worse else 80.0)


def test_all_ranks_have_the_same_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, real = list[int](), random.Random

    def noted(seed: int) -> random.Random:
        seeds.append(seed)
        return real(seed)

    monkeypatch.setattr(random, "Random", noted)
    filled(beside_a_large_node())
    assert seeds == [0]


def test_nothing_is_tried_where_compute_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = beside_a_large_node(large_us=30.1)
    monkeypatch.setattr(under_test, "idle_places", None)
    assert filled(problem) == ([node.name for node in problem.nodes], 110.1)


def test_it_ends_after_so_many_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    in_vain, real = list[int](), under_test._Filler.try_one

    def noted(self: under_test._Filler) -> None:
        real(self)
        in_vain.append(self.in_vain)

    monkeypatch.setattr(under_test._Filler, "try_one", noted)
    assert filled(beside_a_large_node())[1] == 80.0
    assert 0 in in_vain
    in_vain.clear()
    monkeypatch.setattr(under_test, "FORWARD", 1.0)  # for that there is no room
    assert filled(beside_a_large_node())[1] == 110.0
    assert in_vain == [*range(1, MOST_IN_VAIN + 1)]


def test_more_effort_tries_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[under_test._Filler]()
    monkeypatch.setattr(under_test._Filler, "try_one", lambda self: tried.append(self))
    monkeypatch.setattr(under_test, "MOST_TRIALS", 7)
    filled(beside_a_large_node(), effort=3)
    assert len(tried) == 21
    monkeypatch.setattr(under_test, "TRIED_NODES", 5 * 14)
    filled(beside_a_large_node(), effort=3)
    assert len(tried) == 21 + 15
    monkeypatch.setattr(under_test, "TRIED_NODES", 13)
    monkeypatch.setattr(under_test, "replay", None)  # of a large graph that alone would take long
    filled(beside_a_large_node(), effort=3)


def test_groups_of_one_link_are_busy_together() -> None:
    problem = beside_a_large_node()
    nodes = list(problem.nodes)
    nodes[1] = nodes[1]._replace(group="h")
    nodes[3] = nodes[3]._replace(group="k")
    groups = {name: Group(8, True) for name in ("g", "h", "k")}
    problem = replace(problem, nodes=tuple(nodes), groups=groups)
    assert busiest_link(problem) == [1]
    shared = replace(problem, contention=Contention(links={"g": "wire", "k": "wire"}))
    assert sum(problem.nodes[v].time_us for v in busiest_link(shared)) == 30.0
    shared = replace(problem, contention=Contention(links={"h": "wire", "k": "wire"}))
    assert busiest_link(shared) == [1, 3]


@examples(200)
@given(problems(max_steps=30), st.sampled_from(("none", "group", "all")), contentions, st.integers(0, 12))
def test_within_the_budget_and_never_longer(
    problem: Problem, preserve: Preserve, contention: Contention, room: int
) -> None:
    problem = contended(problem, contention)
    options = Options(memory_model=problem.memory_model, preserve_collective_order=preserve, headroom=room)
    task = Task(problem, options, max(peak_by_definition(problem, list(problem.original_order))))
    best = task.measured(problem.original_order)
    made = fill_links(task, best, None)
    assert made is best or made.step_us < best.step_us
    assert violation(problem, made.order) is None
    assert made == task.remeasured(best, made.order)
    assert (task.live_ranges.profile(made.order) <= task.limit).all()
    at = {v: k for k, v in enumerate(made.order)}
    assert all(at[u] < at[v] for u, v in task.pairs)


@pytest.mark.parametrize("allocator", ["none", "plain"])
def test_the_last_stage_knows_what_the_allocator_has(allocator: str) -> None:
    known = list[bool]()

    def noted(real: object, context: Context, best: Candidate) -> Candidate:
        known.append(context.reserve is not None)
        return best

    schedule(large_layers(8, 64), Options(allocator=allocator, strict=True), stages=with_stage("fill links", noted))
    assert known == {"none": [False], "plain": [False, True]}[allocator]  # first as if there were none
