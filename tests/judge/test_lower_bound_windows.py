"""The bound of large graphs: true, never above the exact one, and the exact one where a window sees all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.lower_bound import lower_bound_us, windowed_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import read_problem
from tests.judge.test_contention import contended, with_lanes
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, all_orders

WINDOWS = st.sampled_from((1, 2, 3, 4, 8, 64))


@pytest.mark.slow
@given(problems(max_steps=6), WINDOWS, with_lanes)
@examples(250)
def test_no_order_beats_it(problem: Problem, window: int, contention: Contention) -> None:
    if len(problem.nodes) > 8:
        return
    problem = contended(problem, contention)
    optimum = min(replay(problem, order).step_us for order in all_orders(problem))
    assert windowed_bound_us(problem, window) <= optimum * (1 + 1e-9)


@given(problems(max_steps=40), WINDOWS)
@examples(100)
def test_it_is_never_above_the_exact_one(problem: Problem, window: int) -> None:
    assert windowed_bound_us(problem, window) <= lower_bound_us(problem) * (1 + 1e-9)


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


@pytest.mark.parametrize("window", [8, 16, 100, 1000])
def test_windows_are_chained(window: int) -> None:
    problem = layers(50)
    assert lower_bound_us(problem) == windowed_bound_us(problem, window) == 50 * 25.0


def test_compute_that_no_window_sees_whole_is_counted_once() -> None:
    """A scatter that all compute must precede, then compute that needs it: heads and tails across windows."""
    chain = [Node(f"a{k}", Kind.COMPUTE, (k - 1,) if k else (), time_us=1.0) for k in range(100)]
    side = [Node(f"b{k}", Kind.COMPUTE, (99,), time_us=1.0) for k in range(3)]
    scatter = Node("scatter", Kind.COLLECTIVE, (100, 101), time_us=50.0, group="fsdp")
    wait = Node("wait", Kind.WAIT, (103,), collective=103)
    more = [Node(f"c{k}", Kind.COMPUTE, (104 + k,), time_us=1.0) for k in range(100)]
    problem = Problem("long", (*chain, *side, scatter, wait, *more), (), {"fsdp": Group(8, True)})
    assert lower_bound_us(problem) == 102.0 + 50.0 + 100.0
    assert windowed_bound_us(problem, 20) == 102.0 + 50.0 + 100.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("name", ["llama3_8b_bw_64_2d", "llama3_8b_fw_64_2d"])
def test_little_is_lost_on_real_graphs(name: str, scale: float) -> None:
    problem = read_problem(INSTANCES / f"{name}.json.gz", scale)
    plain = replace(problem, name="windows")
    assert windowed_bound_us(plain, 1024) == pytest.approx(lower_bound_us(problem), rel=0.001)


def test_large_graphs_have_this_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.judge.lower_bound.EXACT_NODES", 100)
    monkeypatch.setattr("overlap_sched.judge.lower_bound.windowed_bound_us", lambda problem: 7.0)
    assert lower_bound_us(layers(25)) == 25 * 25.0
    assert lower_bound_us(layers(26)) == 7.0


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
    for bound_us in (lower_bound_us(problem), windowed_bound_us(problem, 8)):
        assert bound_us == optimum
