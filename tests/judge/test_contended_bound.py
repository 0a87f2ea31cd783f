"""Bounds under contention: drawn examples worked out by hand, and all orders of small graphs with two chains."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given

from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.lower_bound import Chain, Losses, losses, lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from tests.judge.test_budget_bound import tail
from tests.judge.test_contention import contended, contentions
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import all_orders

GROUPS = {"tp": Group(8, intra_node=True), "fsdp": Group(64, intra_node=False)}


def drawn(gather_us: float = 40.0) -> Problem:
    """As in the module: compute 30, an exchange of 10 that compute 20 waits for, and a gather beside all of it."""
    nodes = (
        Node("gather", Kind.COLLECTIVE, time_us=gather_us, group="fsdp"),
        Node("first", Kind.COMPUTE, time_us=30.0),
        Node("exchange", Kind.COLLECTIVE, deps=(1,), time_us=10.0, group="tp"),
        Node("wait", Kind.WAIT, collective=2),
        Node("second", Kind.COMPUTE, deps=(3,), time_us=20.0),
    )
    return Problem("drawn", nodes, (), GROUPS, contention=Contention({"": 1.25}))


def test_the_drawn_example() -> None:
    problem = drawn()
    assert losses(problem) == Losses(
        50.0, ((pytest.approx(8.0), pytest.approx(0.2)), (pytest.approx(2.0), pytest.approx(0.2)))
    )
    # 10 of the gather fall beside the exchange, 30 beside compute, which loses 6
    assert lower_bound_us(problem) == pytest.approx(66.0)
    assert replay(problem, problem.original_order).step_us == pytest.approx(
        67.5
    )  # the gather goes on once it is launched
    assert lower_bound_us(drawn(gather_us=5.0)) == pytest.approx(60.0)  # all of it beside the exchange


def test_what_is_not_counted_runs_beside_the_chain() -> None:
    other = Node("other", Kind.COMPUTE, time_us=20.0)
    problem = replace(drawn(), nodes=(*drawn().nodes, other))
    # beside the exchange 8 of the other compute are done: 12 are left, and 30 of the gather take 6
    assert lower_bound_us(problem) == pytest.approx(30 + 10 + 20 + 12 + 6)


def test_a_narrow_place_loses_too() -> None:
    problem = replace(tail(slow_us=5.0, x_bytes=10, table_bytes=100), contention=Contention({"": 1.25}))
    # as without contention for 101 bytes, 98, whose chain ends with the scatter of 40; a fifth of the other 11 is lost
    assert budget_bound_us(replace(problem, contention=Contention()), 101) == 98.0
    assert budget_bound_us(problem, 101) == pytest.approx(98.0 + 2.2)


def test_what_is_ahead_on_the_stream_takes_from_compute() -> None:
    slow = tail(slow_us=25.0)
    # without contention 100: each weight gradient (20) runs before the last launch, or queues behind it (25). With it,
    # 4 more for a scatter of 20 ahead, so that queueing costs more: 20 + 5, and 0.2 for the small one
    problem = replace(slow, contention=Contention({"": 1.25}))
    assert budget_bound_us(slow, 10**9) == 100.0
    assert budget_bound_us(problem, 10**9) == pytest.approx(20 + 40 + 2 * 25 + 0.2)


@cache
def small() -> tuple[Problem, ...]:
    """Rounds of compute and exchanges, gathers that a round needs, compute on the side: 6 to 10 nodes."""
    grown = (_chains(random.Random(seed)) for seed in range(60))
    return tuple(problem for problem in grown if len(problem.nodes) <= 10)


def _chains(draw: random.Random) -> Problem:
    nodes: list[Node] = []
    storages: list[Storage] = []

    def add(kind: Kind, **fields: object) -> int:
        nodes.append(Node(f"{kind.value}{len(nodes)}", kind, **fields))  # type: ignore[arg-type]
        return len(nodes) - 1

    def made() -> int:
        storages.append(Storage(draw.choice((1, 2, 4, 8))))
        return len(storages) - 1

    last: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    for _ in range(2):
        needs = last
        if draw.random() < 0.7:
            full = made()
            gather = add(
                Kind.COLLECTIVE, alloc=(full,), time_us=float(draw.choice((4, 8, 16))), op="all_gather", group="fsdp"
            )
            needs = (*needs, add(Kind.WAIT, use=(full,), collective=gather))
            held = (*held, full)
        out = made()
        compute = add(Kind.COMPUTE, deps=needs, alloc=(out,), use=held, time_us=float(draw.choice((4, 8))))
        exchange = add(
            Kind.COLLECTIVE,
            deps=(compute,),
            use=(out,),
            time_us=float(draw.choice((2, 4, 8))),
            op="all_to_all",
            group="tp",
        )
        last, held = (add(Kind.WAIT, use=(out,), collective=exchange),), (out,)
    if draw.random() < 0.7:
        add(Kind.COMPUTE, alloc=(made(),), time_us=float(draw.choice((2, 4, 8))))
    slowdown = draw.choice(({"": 1.25}, {"": 2.0}, {"all_gather": 1.5}, {"all_gather": 1.25, "all_to_all": 4.0}))
    links = draw.choice(({}, {}, {"tp": "wire", "fsdp": "wire"}))
    return Problem("chains", tuple(nodes), tuple(storages), GROUPS, contention=Contention(slowdown, links))


def measured(problem: Problem) -> Iterator[tuple[int, float]]:
    for order in all_orders(problem):
        yield peak_memory(problem, order)[0], replay(problem, order).step_us


def test_no_order_of_small_graphs_beats_the_bounds() -> None:
    met, all_us = 0, 0.0
    for problem in small():
        orders = list(measured(problem))
        bound, optimum = lower_bound_us(problem), min(step for _, step in orders)
        assert bound <= optimum * (1 + 1e-9)
        for budget in {peak for peak, _ in orders}:
            within = min(step for peak, step in orders if peak <= budget)
            assert bound <= budget_bound_us(problem, budget) <= within * (1 + 1e-9)
        met += bound >= optimum * (1 - 1e-9)
        all_us += bound
    assert (met, round(all_us, 1)) == (24, 1016.2)  # as strong as it was, on graphs like these


@pytest.mark.parametrize("stretch", [{"": 0.25}, {"all_gather": 0.5, "all_to_all": 2.0}])
def test_nor_where_collectives_go_faster_beside_compute(stretch: dict[str, float]) -> None:
    lower = 0
    for given_problem in small()[::3]:
        problem = replace(given_problem, contention=replace(given_problem.contention, stretch=stretch))
        orders = list(measured(problem))
        for budget in {peak for peak, _ in orders}:
            within = min(step for peak, step in orders if peak <= budget)
            assert lower_bound_us(problem) <= budget_bound_us(problem, budget) <= within * (1 + 1e-9)
        lower += lower_bound_us(problem) < lower_bound_us(given_problem)
    assert lower > 3  # it is about something


@pytest.mark.slow
@given(problems(max_steps=6), contentions)
@examples(200)
def test_no_order_within_a_budget_beats_the_bound(problem: Problem, contention: Contention) -> None:
    if len(problem.nodes) > 8:
        return
    problem = contended(problem, contention)
    orders = list(measured(problem))
    for budget in {peak for peak, _ in orders}:
        optimum = min(step for peak, step in orders if peak <= budget)
        assert lower_bound_us(problem) <= budget_bound_us(problem, budget) <= optimum * (1 + 1e-9)


def test_a_chain_of_nothing_is_all_compute_and_what_is_lost() -> None:
    assert Losses(50.0, ((8.0, 0.2), (2.0, 0.5))).step_us(Chain(0.0, 0.0, 0.0)) == 58.0
    assert Losses(50.0, ()).step_us(Chain(50.0, 0.0, 0.0)) == 50.0
