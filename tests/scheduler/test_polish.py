"""Polishing stages: never above the budget, never longer, and what each of them is for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Group, Kind, Node, Options, Problem, Storage, read_problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.precedence import launch_pairs, neighbours
from overlap_sched.scheduler.driver import ALL, relink_far_from_bound
from overlap_sched.scheduler.polish import between, fill_stalls, shift, shifted
from overlap_sched.scheduler.task import SAME_STEP, Candidate, Reference, Task
from overlap_sched.simulate.ledger import LiveRanges, MovableOrder
from tests.judge.test_contention import contended, contentions
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import best_of_runs
from tests.support.oracle import INSTANCES, peak_by_definition, random_order, step_by_definition


def launches(problem: Problem, order: list[int]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for v in order:
        if problem.nodes[v].kind is Kind.COLLECTIVE:
            found.setdefault(problem.nodes[v].group, []).append(v)
    return found


@examples(150)
@given(problems(), st.integers(0, 99), st.integers(0, 12), st.booleans(), st.data())
def test_within_the_budget_and_never_slower_whatever_the_times(
    problem: Problem, seed: int, room: int, flat: bool, data: st.DataObject
) -> None:
    order = random_order(problem, seed)
    profile = peak_by_definition(problem, order)
    limit = np.array(max(profile) + room) if flat else np.array(profile) + room
    wide = list(shifted(LiveRanges(problem), order, limit))
    assert violation(problem, wide) is None
    assert all(np.array(peak_by_definition(problem, wide)) <= limit)
    assert launches(problem, wide) == launches(problem, order)
    assert sorted(wide) == sorted(order)
    times = data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0]), min_size=len(order), max_size=len(order)))
    nodes = (
        node._replace(time_us=times[v])
        if node.kind is Kind.COLLECTIVE
        or (node.kind is Kind.COMPUTE and node.time_us > 0)  # what takes no time may move
        else node
        for v, node in enumerate(problem.nodes)
    )
    other = replace(problem, nodes=tuple(nodes))
    for graph in (problem, other):
        before, after = step_by_definition(graph, order), step_by_definition(graph, wide)
        assert after <= before * (1 + 1e-12)


@examples(60)
@given(problems(), st.integers(0, 99))
def test_without_a_limit_nothing_stands_between_a_wait_and_its_first_user(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    wide = list(shifted(LiveRanges(problem), order, np.array(2**61)))
    needed = [set(after) for after in problem.successors]
    for at, v in enumerate(wide):
        if problem.nodes[v].kind is not Kind.WAIT:
            continue
        first = next((k for k in range(at + 1, len(wide)) if wide[k] in needed[v]), len(wide))
        for w in wide[at + 1 : first]:  # only what has gone to its own first user, the same one
            node = problem.nodes[w]
            assert node.kind is Kind.WAIT or (node.kind is Kind.COMPUTE and node.time_us == 0)


@examples(60)
@given(problems(), st.integers(0, 99), st.integers(0, 8))
def test_memory_is_counted_exactly_move_by_move(problem: Problem, seed: int, room: int) -> None:
    order = random_order(problem, seed)
    live_ranges, limit = LiveRanges(problem), np.array(max(peak_by_definition(problem, order)) + room)
    line = MovableOrder(live_ranges, order, limit)

    def check() -> None:
        assert line.during.tolist() == peak_by_definition(problem, line.order.tolist())
        assert max(line.during) <= limit

    before, after = neighbours(problem, launch_pairs(problem, order, "group"))
    for v in order:  # any node: more kinds of moves than are made
        if problem.nodes[v].kind is not Kind.INPUT:
            line.move_later(v, min((int(line.position[w]) for w in after[v]), default=len(order)) - 1)
            check()
            line.move_sooner(v, max((int(line.position[u]) for u in before[v]), default=-1) + 1)
            check()


def named(*names: str) -> list[int]:
    ids = {node.name: v for v, node in enumerate(EXAMPLE.nodes)}
    return [ids[name] for name in names]


def test_on_the_example() -> None:
    order = named("w", "x", "mm", "gather", "full", "wgrad", "dgrad", "scatter", "grad", "output")
    ranges, limit, (mm, gather) = LiveRanges(EXAMPLE), np.array(2**40), named("mm", "gather")
    kept = shifted(ranges, order, limit, [(mm, gather)])
    assert kept.index(mm) < kept.index(gather)
    wide = shifted(ranges, order, limit)
    assert wide == tuple(named("w", "x", "gather", "mm", "wgrad", "scatter", "full", "dgrad", "grad", "output"))


def test_memory_stops_a_move_half_way() -> None:
    """At the original peak the launch of `scatter` cannot go before `dgrad`: its byte does not fit beside."""
    order = named("w", "x", "gather", "full", "mm", "wgrad", "dgrad", "scatter", "grad", "output")
    peak = max(peak_by_definition(EXAMPLE, order))
    tight = shifted(LiveRanges(EXAMPLE), order, np.array(peak))
    loose = shifted(LiveRanges(EXAMPLE), order, np.array(peak + 2**20))
    scatter = named("scatter")[0]
    assert tight.index(scatter) > tight.index(named("dgrad")[0])
    assert loose.index(scatter) < loose.index(named("dgrad")[0])


@examples(150)
@given(problems(max_steps=20), contentions, st.integers(0, 99))
def test_under_contention_the_phase_keeps_what_it_would_make_longer(
    problem: Problem, contention: Contention, seed: int
) -> None:
    problem = contended(problem, contention)
    task = Task(problem, Options(memory_model=problem.memory_model), 0)
    best = task.measured(tuple(random_order(problem, seed)))
    made = shift(task, best, best.order, np.array(2**61))
    assert made.step_us <= best.step_us * (1 + SAME_STEP)
    assert made.step_us == pytest.approx(replay(problem, made.order).step_us, rel=1e-9)


BACKWARD_2D, FORWARD_2D = (INSTANCES / f"llama3_8b_{part}_64_2d.json.gz" for part in ("bw", "fw"))


@examples(60)
@given(problems(max_steps=20), st.integers(0, 99), st.integers(0, 99), st.integers(0, 100))
def test_orders_in_between_are_valid(problem: Problem, seed: int, other: int, percent: int) -> None:
    first, second = tuple(random_order(problem, seed)), tuple(random_order(problem, other))
    assert violation(problem, between(first, second, percent)) is None
    assert between((0, 1, 2, 3, 4, 5), (5, 0, 1, 2, 3, 4), 60) == (0, 1, 5, 2, 3, 4)
    assert (between(first, second, 0), between(first, second, 100)) == (first, second)


@examples(60)
@given(problems(max_steps=20), st.integers(1, 3), st.integers(0, 12))
def test_within_the_budget_and_never_longer(problem: Problem, effort: int, room: int) -> None:
    peak = max(peak_by_definition(problem, list(problem.original_order)))
    options = Options(memory_model=problem.memory_model, effort=effort, headroom=room)
    task = Task(problem, options, peak)
    reference = Reference(problem, problem.original_order, task.live_ranges)
    best = best_of_runs(task, reference, task.measured(problem.original_order))
    made = relink_far_from_bound(task, reference, best)
    assert violation(problem, made.order) is None
    assert made.step_us == step_by_definition(problem, list(made.order)) <= best.step_us * (1 + 1e-9)
    assert made.peak_bytes == max(peak_by_definition(problem, list(made.order))) <= peak + room
    assert made.work.runs >= best.work.runs


@pytest.mark.slow
def test_where_network_and_memory_bind_the_step_is_shorter() -> None:
    problem, options = read_problem(BACKWARD_2D), Options(strict=True)
    stages = ALL.without("fill stalls")  # it gains much of the same
    with_it, without = (schedule(problem, options, stages=those) for those in (stages, stages.without("relink")))
    assert with_it.scheduled.step_us < 0.975 * without.scheduled.step_us
    assert with_it.scheduled.peak_bytes <= with_it.original.peak_bytes


def filled(problem: Problem, order: Order, options: Options) -> Candidate:
    """What the stage makes of an order, within what that takes and the headroom."""
    task = Task(problem, options, max(peak_by_definition(problem, list(order))))
    best = task.measured(order)
    found = Candidate(best.order, best.step_us, best.peak_bytes, dict.fromkeys(problem.collectives, "reference"))
    return fill_stalls(task, task.reference(order), found)


@examples(120)
@given(problems(max_steps=20), st.integers(0, 99), st.integers(0, 12), st.sampled_from(("none", "group", "all")))
def test_within_the_budget_and_never_slower(problem: Problem, seed: int, room: int, kept: str) -> None:
    order = tuple(random_order(problem, seed)) if kept == "none" else problem.original_order
    options = Options(memory_model=problem.memory_model, headroom=room, preserve_collective_order=kept)  # type: ignore[arg-type]
    made = filled(problem, order, options)
    assert violation(problem, made.order) is None
    assert made.step_us == step_by_definition(problem, list(made.order))
    assert made.peak_bytes == max(peak_by_definition(problem, list(made.order)))
    assert made.peak_bytes <= max(peak_by_definition(problem, list(order))) + room
    assert made.step_us < step_by_definition(problem, list(order)) if made.order != order else True
    place = {v: at for at, v in enumerate(made.order)}
    pairs = launch_pairs(problem, problem.original_order, options.preserve_collective_order)
    assert all(place[u] < place[v] for u, v in pairs)


def routed(layers: int, size: int = 1) -> Problem:
    """Layers of a backward pass with experts: a weight gradient with its scatter, a chain, an exchange awaited at once.

    A weight gradient takes 40 us, its scatter 20, the chain 50, the exchange 30. A weight gradient is the last to use a
    storage of a size that is given.
    """
    nodes, storages, ends = [Node("x", Kind.INPUT, alloc=(0,))], [Storage(1, True)], list[int]()

    def made(name: str, after: int, us: float, group: str | None = None, size: int = 1) -> int:
        kind, held = (Kind.COLLECTIVE if group else Kind.COMPUTE), (nodes[after].alloc if us and after else ())
        nodes.append(Node(name, kind, (after,), (len(storages),), held, us, name[:4], group))
        storages.append(Storage(size))
        return len(nodes) - 1

    def wait(launch: int) -> int:
        held = (*nodes[launch].use, *nodes[launch].alloc)
        nodes.append(Node(f"{nodes[launch].name}.wait", Kind.WAIT, (launch,), (), held, collective=launch))
        return len(nodes) - 1

    before = 0
    for k in range(layers):
        saved = made(f"saved{k}", before, 0.0, size=size)
        ends.append(made(f"scatter{k}", made(f"wgrad{k}", saved, 40.0), 20.0, "fsdp"))
        before = wait(made(f"exchange{k}", made(f"chain{k}", before, 50.0), 30.0, "ep"))
    waits = [wait(scatter) for scatter in ends]
    nodes.append(Node("output", Kind.OUTPUT, (before, *waits)))
    return Problem("routed", tuple(nodes), tuple(storages), {"fsdp": Group(8, True), "ep": Group(8, True)})


def test_on_the_picture() -> None:
    problem = routed(1)
    made = filled(problem, problem.original_order, Options(headroom=99))
    assert " ".join(problem.names(made.order)) == (
        "x saved0 chain0 exchange0 wgrad0 scatter0 exchange0.wait scatter0.wait output"
    )
    reasons = {problem.nodes[v].name: reason for v, reason in made.reasons.items()}
    assert reasons == {"scatter0": "deferred", "exchange0": "reference"}


def test_each_layer_hides_its_own_exchange() -> None:
    problem = routed(10)
    made = filled(problem, problem.original_order, Options(headroom=99))
    assert step_by_definition(problem, list(problem.original_order)) == 10 * (40 + 50 + 30)
    assert made.step_us == 10 * (40 + 50) + 20  # the last scatter begins at the end


def queued(needs: bool = False) -> Problem:
    """A long scatter in front of a gather on one stream; with ``needs`` the gather is of what the scatter returns."""
    nodes = (
        Node("x", Kind.INPUT, alloc=(0,)),
        Node("scatter", Kind.COLLECTIVE, (0,), (1,), (0,), 50.0, "scatter", "fsdp"),
        Node("scatter.wait", Kind.WAIT, (1,), (), (1,), collective=1),
        Node("cast", Kind.COMPUTE, (2 if needs else 0,), (2,), (1 if needs else 0,), 5.0, "cast"),
        Node("gather", Kind.COLLECTIVE, (3,), (3,), (2,), 20.0, "gather", "fsdp"),
        Node("mm", Kind.COMPUTE, (0,), (4,), (0,), 30.0, "mm"),
        Node("gather.wait", Kind.WAIT, (4,), (), (3,), collective=4),
        Node("user", Kind.COMPUTE, (5, 6), (5,), (3, 4), 60.0, "mm"),
        Node("output", Kind.OUTPUT, (2, 7)),
    )
    return Problem("queued", nodes, (Storage(1, True), *[Storage(1)] * 5), {"fsdp": Group(8, True)})


def test_what_is_waited_for_skips_the_queue() -> None:
    problem = queued()
    order = tuple(problem.names(problem.original_order).index(name) for name in (
        "x", "scatter", "cast", "gather", "mm", "gather.wait", "user", "scatter.wait", "output"
    ))  # fmt: skip
    assert step_by_definition(problem, list(order)) == 50 + 20 + 60
    made = filled(problem, order, Options(headroom=99))
    assert " ".join(problem.names(made.order)) == "x cast gather scatter mm gather.wait user scatter.wait output"
    assert made.step_us == 5 + 30 + 60
    assert filled(problem, order, Options(headroom=99, preserve_collective_order="group")).order == order
    needs = queued(needs=True)
    assert filled(needs, needs.original_order, Options(headroom=99)).step_us == 50 + 5 + 20 + 60


def test_what_is_behind_a_wait_goes_in_front_of_it_with_what_it_needs() -> None:
    nodes = (
        Node("x", Kind.INPUT, alloc=(0,)),
        Node("gather", Kind.COLLECTIVE, (0,), (1,), (0,), 30.0, "gather", "fsdp"),
        Node("wait", Kind.WAIT, (1,), (), (1,), collective=1),
        Node("user", Kind.COMPUTE, (2,), (2,), (1,), 60.0, "mm"),
        Node("cast", Kind.COMPUTE, (0,), (3,), (0,), 1.0, "cast"),
        Node("mm", Kind.COMPUTE, (4,), (4,), (3,), 40.0, "mm"),
        Node("output", Kind.OUTPUT, (3, 5)),
    )
    problem = Problem("behind", nodes, (Storage(1, True), *[Storage(1)] * 4), {"fsdp": Group(8, True)})
    made = filled(problem, problem.original_order, Options(headroom=99))
    assert " ".join(problem.names(made.order)) == "x gather cast mm wait user output"
    assert made.step_us == 1 + 40 + 60
    assert filled(problem, problem.original_order, Options(budget="profile")).order == problem.original_order


def test_where_memory_refuses_it_nothing_is_moved() -> None:
    problem = routed(3, size=8)
    assert filled(problem, problem.original_order, Options(budget="profile")).order == problem.original_order
