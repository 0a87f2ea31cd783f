"""Stalls: compute from in front of a launch goes behind it where that makes the step shorter and memory admits it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order
from overlap_sched.problem.precedence import launch_pairs
from overlap_sched.scheduler import polish
from overlap_sched.scheduler.polish import fill_stalls
from overlap_sched.scheduler.task import Candidate, Task
from overlap_sched.simulate.clock import StepTrail
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition, random_order, step_by_definition


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
    assert filled(needs, needs.original_order, Options(headroom=99)).order == needs.original_order


def test_where_memory_refuses_it_nothing_is_moved() -> None:
    problem = routed(3, size=8)
    assert filled(problem, problem.original_order, Options(budget="profile")).order == problem.original_order


def test_what_is_tried_in_vain_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Order]()

    def never_shorter(trail: StepTrail, order: Order) -> float:
        tried.append(order)
        return math.inf

    monkeypatch.setattr(StepTrail, "of", never_shorter)
    problem = routed(60)
    monkeypatch.setattr(polish, "MOST_IN_VAIN", 40)
    assert filled(problem, problem.original_order, Options(headroom=99)).order == problem.original_order
    assert len(tried) == polish.MOST_IN_VAIN
    tried.clear()
    monkeypatch.setattr(polish, "TRIED_NODES", 5 * len(problem.nodes))
    filled(problem, problem.original_order, Options(headroom=99, effort=1))
    assert len(tried) == 5
