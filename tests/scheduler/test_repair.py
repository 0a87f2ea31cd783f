"""Orders mended where their allocator fails: promises on random graphs, and one repair of each kind by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, PLAIN
from overlap_sched.problem.precedence import Preserve, launch_pairs
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.repair import ROOMS, repaired
from overlap_sched.scheduler.room import Growth, cheapest_room, out_of_memory, outgrown
from tests.scheduler.test_reserve import large_layers
from tests.support.examples import examples
from tests.support.oracle import random_order

LARGE = 2**40
PRESERVE: tuple[Preserve, ...] = ("none", "group", "all")


def task_of(problem: Problem, **options: Any) -> Task:
    peak = int(LiveRanges(problem).profile(problem.original_order).max())
    return Task(problem, Options(**options), peak)


def reserved_bytes(task: Task, order: Order) -> int:
    return requests_of(task.live_ranges, order).replayed(PLAIN).peak_reserved_bytes


def line(*rows: tuple[str, int, str]) -> Problem:
    """Compute nodes of 10 us, each a name, MiB that it makes, and whose storages it uses; then an output of all."""
    names = [name for name, _, _ in rows]
    nodes = [
        Node(name, Kind.COMPUTE, (), (v,), tuple(names.index(u) for u in uses.split()), 10.0)
        for v, (name, _, uses) in enumerate(rows)
    ]
    output = Node("output", Kind.OUTPUT, tuple(range(len(rows))))
    return Problem("line", (*nodes, output), tuple(Storage(mib * MIB) for _, mib, _ in rows))


def ids(problem: Problem, names: str) -> Order:
    index = {node.name: v for v, node in enumerate(problem.nodes)}
    return tuple(index[name] for name in names.split())


def names_of(problem: Problem, order: Sequence[int]) -> str:
    return " ".join(problem.names(tuple(order)))


EARLY = line(("a", 64, ""), ("b", 64, "a"), ("big", 128, "b"), ("c", 1, "big"), ("early", 32, ""), ("late", 1, "early"))
"""In its original order one segment of 64 MiB is free beside ``b``; whatever runs early takes it."""


def test_growth_is_what_each_node_makes_the_allocator_reserve() -> None:
    growth = Growth.of(LiveRanges(EARLY), EARLY.original_order)
    assert growth.inputs_bytes == 0
    assert {EARLY.nodes[v].name: count // MIB for v, count in growth.by_node.items()} == {
        "a": 64,
        "b": 64,
        "big": 128,
        "c": 2,
    }
    assert growth.total_bytes == reserved_bytes(task_of(EARLY), EARLY.original_order)


def test_where_an_order_outgrows_the_original_one() -> None:
    live_ranges = LiveRanges(EARLY)
    growth = Growth.of(live_ranges, EARLY.original_order)
    assert outgrown(live_ranges, EARLY.original_order, growth, 0) is None
    order = ids(EARLY, "early a b big c late output")
    failure = outgrown(live_ranges, order, growth, 0)
    assert failure is not None
    assert (EARLY.nodes[failure.node].name, failure.size) == ("early", 32 * MIB)
    assert outgrown(live_ranges, order, growth, 32 * MIB) is None


def test_what_grows_too_early_runs_behind_what_it_was_in_the_way_of() -> None:
    task = task_of(EARLY, headroom="100%")
    growth = Growth.of(task.live_ranges, EARLY.original_order)
    order = ids(EARLY, "a early b big c late output")
    assert reserved_bytes(task, order) > growth.total_bytes
    failure = outgrown(task.live_ranges, order, growth, 16 * MIB)
    assert failure is not None
    mended = repaired(task, task.measured(order), growth, 33 * MIB, LARGE, ROOMS[-1])
    assert mended.order == order  # it may
    mended = repaired(task, task.measured(ids(EARLY, "a b early big c late output")), growth, 0, LARGE, ROOMS[-1])
    assert outgrown(task.live_ranges, mended.order, growth, 0) is None
    assert reserved_bytes(task, mended.order) == growth.total_bytes


def test_on_a_small_device_what_is_in_the_way_moves() -> None:
    task = task_of(EARLY, headroom="100%")
    order = ids(EARLY, "a early b big c late output")
    failure = out_of_memory(task.live_ranges, order, 210 * MIB)
    assert failure is not None
    assert EARLY.nodes[failure.node].name == "big"
    growth = Growth.of(task.live_ranges, EARLY.original_order)
    mended = repaired(task, task.measured(order), growth, LARGE, 210 * MIB, ROOMS[-1])
    assert names_of(EARLY, mended.order) == "a b big early c late output"
    assert mended.step_us == task.measured(order).step_us


def test_what_moves_with_another_moves_once() -> None:
    problem = line(("w", 64, ""), ("x", 1, ""), ("v", 16, "w x"), ("big", 128, ""), ("use", 1, "w v big"))
    task = task_of(problem, headroom="100%")
    growth = Growth.of(task.live_ranges, problem.original_order)
    found = repaired(task, task.measured(problem.original_order), growth, LARGE, 140 * MIB, ROOMS[-1])
    assert found.order != problem.original_order
    assert violation(problem, found.order) is None


def test_what_is_used_late_ends_before() -> None:
    problem = line(("w", 64, ""), ("big", 128, ""), ("x", 1, "big"), ("use", 1, "w"))
    task = task_of(problem, headroom="100%")
    growth = Growth.of(task.live_ranges, problem.original_order)
    order = ids(problem, "w big x use output")
    # without a deadline of its own, w either comes later or goes sooner: both leave the device to big
    mended = repaired(task, task.measured(order), growth, LARGE, 140 * MIB, ROOMS[-1])
    assert mended.order != order
    assert out_of_memory(task.live_ranges, mended.order, 140 * MIB) is None


def test_what_cannot_be_had_is_left_alone() -> None:
    for problem in (
        line(("w", 64, ""), ("big", 128, "w"), ("use", 1, "big")),
        line(("w", 64, ""), ("big", 64, "w"), ("use", 1, "w")),  # big itself needs w
        line(("w", 64, ""), ("big", 128, ""), ("use", 1, "w")),  # w could move, but big does not fit alone
    ):
        task = task_of(problem, headroom="100%")
        growth = Growth.of(task.live_ranges, problem.original_order)
        found = task.measured(problem.original_order)
        assert repaired(task, found, growth, LARGE, 100 * MIB, ROOMS[-1]) is found


def test_of_two_rooms_the_one_that_keeps_the_step_short_is_made() -> None:
    """To have x end before big moves a wait alone, which then stalls; to make y behind it stalls nothing."""
    nodes = (
        Node("x", Kind.COMPUTE, (), (0,), (), 5.0),
        Node("launch", Kind.COLLECTIVE, (0,), (1,), (0,), 150.0, "all_reduce", "g"),
        Node("y", Kind.COMPUTE, (), (2,), (), 60.0),
        Node("big", Kind.COMPUTE, (), (3,), (), 100.0),
        Node("wait", Kind.WAIT, (1,), (), (0, 1), collective=1),
        Node("use", Kind.COMPUTE, (2, 4), (4,), (1, 2), 10.0),
        Node("output", Kind.OUTPUT, (3, 5), (), (4,)),
    )
    sizes = (Storage(64 * MIB), Storage(MIB), Storage(64 * MIB), Storage(128 * MIB), Storage(MIB))
    problem = Problem("two rooms", nodes, sizes, {"g": Group(8, True)})
    task = task_of(problem, headroom="100%")
    growth = Growth.of(task.live_ranges, problem.original_order)
    found = task.measured(problem.original_order)
    mended = repaired(task, found, growth, LARGE, 200 * MIB, ROOMS[-1])
    assert names_of(problem, mended.order) == "x launch big y wait use output"
    assert mended.step_us == found.step_us == 175.0
    least_moved = repaired(task, found, growth, LARGE, 200 * MIB, ROOMS[0])
    assert names_of(problem, least_moved.order) == "x launch y wait big use output"
    assert least_moved.step_us == 265.0


def test_a_repair_keeps_to_the_budget() -> None:
    problem = line(("a", 64, ""), ("early", 32, "a"), ("big", 128, ""), ("use", 1, "early"))
    growth = Growth.of(LiveRanges(problem), problem.original_order)
    for headroom, mended in (("100%", "big a early use output"), ("0", "a early use big output")):
        task = task_of(problem, headroom=headroom)  # with early, a would outlive big
        found = repaired(task, task.measured(problem.original_order), growth, LARGE, 200 * MIB, ROOMS[-1])
        assert found.order == problem.original_order
        found = repaired(task, task.measured(problem.original_order), growth, LARGE, 140 * MIB, ROOMS[-1])
        assert names_of(problem, found.order) == mended, headroom


def test_the_cheapest_neighbours_that_are_large_enough_make_room() -> None:
    problem = line(("x", 96, ""), ("y", 0, "x"), ("p", 32, ""), ("q", 32, ""), ("r", 32, ""), ("big", 64, ""))
    problem = replace(problem, nodes=(*problem.nodes[:-1], problem.nodes[-1]._replace(use=(2, 3, 4, 5))))
    failure = out_of_memory(LiveRanges(problem), problem.original_order, 100 * MIB)
    assert failure is not None
    cost = {"p": 1.0, "q": 5.0, "r": 2.0}

    def room(**changed: float) -> list[str]:
        costs = {**cost, **changed}
        return [problem.nodes[s].name for s in cheapest_room(failure, lambda s: costs[problem.nodes[s].name])]

    assert room() == ["p", "q"]
    assert room(p=9.0) == ["q", "r"]
    assert room(q=math.inf) == []


def test_a_small_request_gets_no_room_among_large_blocks() -> None:
    problem = line(("p", 32, ""), ("q", 1, ""), ("r", 1, ""), ("small", 1, ""))
    problem = replace(problem, nodes=(*problem.nodes[:-1], problem.nodes[-1]._replace(use=(0, 1, 2, 3))))
    growth = Growth(0, {0: 32 * MIB, 1: 2 * MIB})
    failure = outgrown(LiveRanges(problem), problem.original_order, growth, 0)
    assert failure is not None
    assert cheapest_room(failure, lambda s: (1.0, 3.0, 2.0)[s]) == [2]


@given(st.integers(0, 2**32), st.sampled_from(PRESERVE), st.integers(0, 40))
@examples(30)
def test_repairs_keep_rules_budget_and_launch_order(seed: int, preserve: Preserve, headroom: int) -> None:
    problem = large_layers(4)
    live_ranges = LiveRanges(problem)
    kept = launch_pairs(problem, problem.original_order, preserve)
    order = random_order(problem, seed, kept)
    peak_bytes = int(live_ranges.profile(order).max())
    task = Task(problem, Options(preserve_collective_order=preserve, headroom=headroom * MIB), peak_bytes)
    growth = Growth.of(live_ranges, problem.original_order)
    capacity = requests_of(live_ranges, problem.original_order).smallest_capacity(PLAIN, growth.total_bytes)
    found = task.measured(order)
    mended = repaired(task, found, growth, 0, capacity, ROOMS[-1])
    assert mended.order != found.order  # no random order is as good as the original one
    assert violation(problem, mended.order) is None
    assert mended.peak_bytes <= peak_bytes + headroom * MIB
    position = {v: at for at, v in enumerate(mended.order)}
    assert all(position[u] < position[v] for u, v in kept)
    assert mended == replace(task.measured(mended.order), reasons=found.reasons)
