"""Lower bounds: no order is shorter; with a budget, under contention, and of parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.lower_bound import lower_bound_us, parts_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import read_problem
from tests.judge.test_contention import contended, with_lanes
from tests.support.exact_search import shortest_step
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, all_orders
from tests.support.small_graphs import SEEDS, read_golden, small_graph, small_graphs

GROUPS = {"fsdp": Group(8, intra_node=False)}
APART = st.sampled_from((1, 2, 3, 4, 8, 64))


def tail(slow_us: float, x_bytes: int = 0, table_bytes: int = 0) -> Problem:
    """Two weight gradients that could be deferred to hide the reduce_scatter of the last one, as drawn in the module::

    chain 10 -> last 10 (allocates `table`) -> scatter 40
    x -> wgrad 20 -> its own scatter, twice
    """
    nodes = [
        Node("x1", Kind.INPUT, alloc=(0,)),
        Node("x2", Kind.INPUT, alloc=(1,)),
        Node("chain", Kind.COMPUTE, alloc=(2,), time_us=10.0),
        Node("wgrad1", Kind.COMPUTE, deps=(0, 2), alloc=(3,), use=(0,), time_us=20.0),
        Node("scatter1", Kind.COLLECTIVE, deps=(3,), use=(3,), time_us=slow_us, group="fsdp"),
        Node("grad1", Kind.WAIT, use=(3,), collective=4),
        Node("wgrad2", Kind.COMPUTE, deps=(1, 2), alloc=(4,), use=(1,), time_us=20.0),
        Node("scatter2", Kind.COLLECTIVE, deps=(6,), use=(4,), time_us=slow_us, group="fsdp"),
        Node("grad2", Kind.WAIT, use=(4,), collective=7),
        Node("last", Kind.COMPUTE, deps=(2,), alloc=(5,), use=(2,), time_us=10.0),
        Node("scatter", Kind.COLLECTIVE, deps=(9,), use=(5,), time_us=40.0, group="fsdp"),
        Node("grad", Kind.WAIT, use=(5,), collective=10),
        Node("other", Kind.COLLECTIVE, time_us=1.0, group="fsdp"),  # so that the stream is not idle at the start
    ]
    sizes = (x_bytes, x_bytes, 0, 1, 1, table_bytes)
    return Problem("tail", tuple(nodes), tuple(map(Storage, sizes)), GROUPS)


def shortest(problem: Problem, budget_bytes: int) -> float:
    found = shortest_step(problem, budget_bytes)
    assert found is not None
    return found.step_us


def test_what_hides_a_collective_queues_behind_it() -> None:
    fast, slow = tail(slow_us=5.0), tail(slow_us=25.0)
    assert budget_bound_us(fast, 10**9) == shortest(fast, 10**9) == 70.0
    # each weight gradient either runs before the last collective is launched (20 us), or queues behind it (25 us)
    assert lower_bound_us(slow) == 91.0  # all communication
    assert budget_bound_us(slow, 10**9) == 20 + 40 + 2 * 20
    assert shortest(slow, 10**9) == 110.0


def test_what_is_put_off_holds_memory() -> None:
    problem = tail(slow_us=5.0, x_bytes=10, table_bytes=100)
    # beside the table of 100 bytes there is room for both weight gradients, for one, for a tenth of one
    assert [budget_bound_us(problem, budget) for budget in (10**9, 110, 101)] == [70.0, 80.0, 98.0]
    assert [shortest(problem, budget) for budget in (10**9, 111)] == [70.0, 85.0]


def test_an_input_that_two_share_is_held_once() -> None:
    """Both weight gradients read `x1`: beside the table it takes 10 bytes, whether one of them is deferred or both."""
    apart = tail(slow_us=5.0, x_bytes=10, table_bytes=100)
    nodes = list(apart.nodes)
    nodes[6] = nodes[6]._replace(deps=(0, 2), use=(0,))
    storages = (apart.storages[0], Storage(0), *apart.storages[2:])
    problem = Problem("shared", tuple(nodes), storages, GROUPS)
    assert budget_bound_us(problem, 110) == 70.0
    assert shortest(problem, 112) == 70.0  # the gradients themselves are one byte each


def test_what_waits_for_a_large_value_may_hold_what_that_is_made_of() -> None:
    """wgrad1 reads a cast of 100 bytes, made of x1 of 10 bytes: put off with its cast it holds those 10."""
    apart = tail(slow_us=5.0, x_bytes=10, table_bytes=100)
    nodes = [node._replace(deps=tuple(u + (u > 2) for u in node.deps)) for node in apart.nodes]
    nodes = [n if n.collective is None else n._replace(collective=n.collective + 1) for n in nodes]
    nodes[3] = nodes[3]._replace(deps=(2, 3), use=(6,))
    nodes.insert(3, Node("cast", Kind.COMPUTE, deps=(0,), alloc=(6,), use=(0,)))
    problem = Problem("cast", tuple(nodes), (*apart.storages, Storage(100)), GROUPS)
    assert [budget_bound_us(problem, budget) for budget in (10**9, 120, 110)] == [70.0, 70.0, 80.0]
    assert shortest(problem, 211) == 70.0


@given(problems(max_steps=6), st.just(Contention()) | with_lanes, APART)
@examples(200)
def test_no_order_within_a_budget_beats_the_bound(problem: Problem, contention: Contention, apart: int) -> None:
    if len(problem.nodes) > 8:
        return
    problem = contended(problem, contention)
    measured = [(peak_memory(problem, o)[0], replay(problem, o).step_us) for o in all_orders(problem)]
    for budget in {peak for peak, _ in measured}:
        optimum = min(step for peak, step in measured if peak <= budget)
        assert lower_bound_us(problem) <= budget_bound_us(problem, budget) <= optimum * (1 + 1e-9)
        assert parts_bound_us(problem, apart) <= optimum * (1 + 1e-9)


@pytest.mark.parametrize(
    ("slowdown", "links", "stretch", "all_us"),
    [
        ({"": 1.25}, {}, {}, 14165.2),
        ({"": 1.25}, {"dp": "wire", "tp": "wire"}, {}, 14405.6),
        ({"": 2.0}, {}, {"": 0.5}, 12929.0),
    ],
)
def test_under_contention_bounds_are_as_strong_as_they_were(
    slowdown: dict[str, float], links: dict[str, str], stretch: dict[str, float], all_us: float
) -> None:
    found = 0.0
    for problem in map(small_graph, SEEDS[:40]):
        there = {group: link for group, link in links.items() if group in problem.groups}
        slowed = replace(problem, contention=Contention(slowdown, there, stretch))
        found += budget_bound_us(slowed, peak_memory(slowed, slowed.original_order)[0])
    assert round(found, 1) == all_us


@pytest.mark.slow
def test_optima_of_small_graphs() -> None:
    optima = read_golden().optimal_us
    raised, all_us = 0, 0.0
    for problem in small_graphs():
        bound = budget_bound_us(problem, peak_memory(problem, problem.original_order)[0])
        assert bound <= optima[problem.name] * (1 + 1e-9), problem.name
        raised += bound > lower_bound_us(problem) * (1 + 1e-9)
        all_us += bound
    assert (raised, all_us) == (14, 113210.0)  # as strong as it was, on graphs like these


def layers(count: int) -> Problem:
    """Compute, a gather that it needs, compute beside it: each layer waits for half of its gather."""
    nodes: list[Node] = []
    for k in range(count):
        v = len(nodes)
        before = (v - 1,) if v else ()
        nodes += [
            Node(f"gather{k}", Kind.COLLECTIVE, before, time_us=20.0, group="fsdp"),
            Node(f"beside{k}", Kind.COMPUTE, before, time_us=10.0),
            Node(f"wait{k}", Kind.WAIT, (v,), collective=v),
            Node(f"layer{k}", Kind.COMPUTE, (v + 1, v + 2), time_us=5.0),
        ]
    return Problem("layers", tuple(nodes), (), {"fsdp": Group(8, True)})


@pytest.mark.parametrize("apart", [8, 16, 100, 1000])
def test_parts_are_added_up(apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layers(50)
    assert lower_bound_us(problem) == parts_bound_us(problem, apart) == 50 * 25.0
    monkeypatch.setattr("overlap_sched.judge.lower_bound.EXACT_NODES", 100)
    monkeypatch.setattr("overlap_sched.judge.budget_bound.EXACT_NODES", 100)
    assert lower_bound_us(problem) == budget_bound_us(problem, 0) == 50 * 25.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("name", ["llama3_8b_bw_64_2d", "llama3_8b_fw_64_2d"])
def test_little_is_lost_on_real_graphs(name: str, scale: float) -> None:
    problem = read_problem(INSTANCES / f"{name}.json.gz").with_comm_scale(scale)
    assert parts_bound_us(problem, 1024) == pytest.approx(lower_bound_us(problem), rel=0.001)


def one_stream(late_launch_us: float, behind_us: float) -> Problem:
    """Two collectives of 10 us on one stream; the second is launched late, or the first has compute behind it."""
    first = [
        Node("first", Kind.COLLECTIVE, time_us=10.0, group="fsdp"),
        Node("wait", Kind.WAIT, (0,), collective=0),
        Node("behind", Kind.COMPUTE, (1,), time_us=behind_us),
        Node("before", Kind.COMPUTE, time_us=late_launch_us),
        Node("second", Kind.COLLECTIVE, (3,), time_us=10.0, group="fsdp"),
    ]
    return Problem("stream", tuple(first), (), {"fsdp": Group(8, True)})


@pytest.mark.parametrize(("late_launch_us", "behind_us"), [(10.0, 0.0), (0.0, 10.0), (5.0, 7.0)])
def test_a_stream_begins_with_its_earliest_and_ends_with_its_freest(late_launch_us: float, behind_us: float) -> None:
    """By brute force: neither the latest start nor the most compute behind may count for the whole stream."""
    problem = one_stream(late_launch_us, behind_us)
    optimum = min(replay(problem, order).step_us for order in all_orders(problem))
    assert optimum == 20.0
    for bound_us in (lower_bound_us(problem), parts_bound_us(problem, 8)):
        assert bound_us == optimum
