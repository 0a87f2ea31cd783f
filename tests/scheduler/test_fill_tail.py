"""The end of a step: compute is deferred behind it where that makes it shorter and memory admits it."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage, read_problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.scheduler.candidate import Task
from overlap_sched.scheduler.fill_tail import fill_tail
from overlap_sched.scheduler.shift import FARTHEST, shift, shifted
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, peak_by_definition, random_order, step_by_definition


def filled(problem: Problem, order: Order, limit: npt.NDArray[np.int64], wide: bool = False) -> tuple[Order, list[str]]:
    """The order that came of another, shifted or not, and the collectives deferred, by name."""
    task = Task(problem, Options(), 0)
    best = replace(task.measured(order), reasons=dict.fromkeys(problem.collectives, "reference"))
    farthest = FARTHEST if wide else 0
    made = fill_tail(task, best, shift(task, best, limit, farthest), limit, farthest)
    assert (made.step_us, made.peak_bytes) == (task.measured(made.order).step_us, task.measured(made.order).peak_bytes)
    return made.order, [problem.nodes[v].name for v in sorted(made.reasons) if made.reasons[v] == "deferred"]


@examples(120)
@given(problems(max_steps=20), st.integers(0, 99), st.integers(0, 12), st.booleans(), st.booleans())
def test_within_the_budget_and_never_slower(problem: Problem, seed: int, room: int, flat: bool, wide: bool) -> None:
    order = tuple(random_order(problem, seed))
    profile = peak_by_definition(problem, list(order))
    assert LiveRanges(problem).profile(order).tolist() == profile
    limit = np.array(max(profile) + room) if flat else np.array(profile) + room
    made, deferred = filled(problem, order, limit, wide)
    given = shifted(LiveRanges(problem), order, limit) if wide else order
    assert violation(problem, made) is None
    assert (np.array(peak_by_definition(problem, list(made))) <= limit).all()
    before, after = step_by_definition(problem, list(given)), step_by_definition(problem, list(made))
    assert after < before if made != given else not deferred


def tail(*jobs: tuple[float, float]) -> Problem:
    """Weight gradients of 4 bytes with their scatters, (compute, communication) in us, then a chain and its scatter.

    Each gradient is made from 8 bytes of its own, which it is the last to use.
    """
    count, storages = len(jobs), [Storage(8) for _ in jobs]
    nodes = [Node(f"x{k}", Kind.INPUT, alloc=(k,)) for k in range(count)]

    def job(name: str, us: float, scatter: str, comm_us: float, size: int, use: tuple[int, ...]) -> None:
        v, s = len(nodes), len(storages)
        storages.extend((Storage(size), Storage(1)))
        nodes.append(Node(name, Kind.COMPUTE, use, (s,), use, us))
        nodes.append(Node(scatter, Kind.COLLECTIVE, (v,), (s + 1,), (s,), comm_us, "reduce_scatter_tensor", "fsdp"))

    for k, (compute_us, comm_us) in enumerate(jobs):
        job(f"wgrad{k}", compute_us, f"u{k}", comm_us, 4, (k,))
    job("chain", 50.0, "v", 60.0, 8, ())
    for v in [v for v, node in enumerate(nodes) if node.kind is Kind.COLLECTIVE]:
        held = (*nodes[v].use, *nodes[v].alloc)
        nodes.append(Node(f"{nodes[v].name}.wait", Kind.WAIT, (v,), (), held, collective=v))
    nodes.append(Node("output", Kind.OUTPUT, tuple(range(len(nodes) - count - 1, len(nodes)))))
    return Problem("tail", tuple(nodes), tuple(storages), {"fsdp": Group(8, True)})


def test_on_the_picture() -> None:
    problem = tail((40.0, 10.0))
    before = problem.original_order
    order, deferred = filled(problem, before, np.array(99))
    assert " ".join(problem.names(order)) == "x0 chain v wgrad0 u0 v.wait u0.wait output"
    assert deferred == ["u0"]
    assert replay(problem, before).step_us == 40 + 50 + 60
    assert replay(problem, order).step_us == 50 + 60 + 10


def test_as_far_as_memory_admits() -> None:
    """A deferred gradient holds its 8 bytes until the end; the later one for less time, so it goes first."""
    problem = tail((20.0, 1.0), (20.0, 1.0))
    for limit, step_us, names in [(26, 150, []), (27, 131, ["u1"]), (35, 112, ["u0", "u1"])]:
        order, deferred = filled(problem, problem.original_order, np.array(limit))
        assert max(peak_by_definition(problem, list(order))) <= limit
        assert replay(problem, order).step_us == step_us
        assert deferred == names


def test_the_shortest_communication_comes_last() -> None:
    problem = tail((20.0, 2.0), (20.0, 9.0))
    order, _ = filled(problem, problem.original_order, np.array(99))
    assert [name for name in problem.names(order) if name.startswith("wgrad")] == ["wgrad1", "wgrad0"]


@pytest.mark.parametrize("job", [(40.0, 40.0), (40.0, 90.0), (0.1, 0.0)])
def test_what_hides_nothing_stays(job: tuple[float, float]) -> None:
    problem = tail(job)
    assert filled(problem, problem.original_order, np.array(99)) == (problem.original_order, [])


def on_another_stream(problem: Problem, *names: str) -> Problem:
    nodes = [node._replace(group="experts") if node.name in names else node for node in problem.nodes]
    return Problem(problem.name, tuple(nodes), problem.storages, {**problem.groups, "experts": Group(8, True)})


def test_collectives_of_another_stream_run_beside_the_last_launch() -> None:
    """Longer than the compute that they come from: behind the last launch they would cost 30, beside it nothing."""
    problem = tail((10.0, 40.0))
    assert filled(problem, problem.original_order, np.array(99)) == (problem.original_order, [])
    beside = on_another_stream(problem, "u0")
    order, deferred = filled(beside, beside.original_order, np.array(99))
    assert deferred == ["u0"]
    assert replay(beside, order).step_us == 50 + 60


def test_no_more_than_the_last_launch_takes_runs_beside_it() -> None:
    """The last launch takes 60: of 20, 25 and 40 on one stream, two fit beside it."""
    beside = on_another_stream(tail((10.0, 20.0), (10.0, 25.0), (10.0, 40.0)), "u0", "u1", "u2")
    order, deferred = filled(beside, beside.original_order, np.array(99))
    assert deferred == ["u0", "u1"]
    assert replay(beside, order).step_us == 10 + 50 + 60


def test_beside_the_last_launch_the_shortest_compute_comes_first() -> None:
    """So that the other stream starts soon: 50 + 2 + 15 + 40 is before the end of the last launch."""
    beside = on_another_stream(tail((10.0, 40.0), (2.0, 15.0)), "u0", "u1")
    order, deferred = filled(beside, beside.original_order, np.array(99))
    assert deferred == ["u0", "u1"]
    assert replay(beside, order).step_us == 50 + 60


def test_small_kernels_of_a_job_count_together() -> None:
    """Of a tail of 300, a kernel of 1 is not worth a move; three of one job are."""
    storages = [Storage(size) for size in (8, 4, 4, 4, 1, 8, 1)]
    nodes = [
        Node("x", Kind.INPUT, alloc=(0,)),
        Node("mm", Kind.COMPUTE, (0,), (1,), (0,), 1.0),
        Node("cast", Kind.COMPUTE, (1,), (2,), (1,), 1.0),
        Node("scale", Kind.COMPUTE, (2,), (3,), (2,), 1.0),
        Node("u", Kind.COLLECTIVE, (3,), (4,), (3,), 0.5, "reduce_scatter_tensor", "fsdp"),
        Node("chain", Kind.COMPUTE, (), (5,), (), 50.0),
        Node("v", Kind.COLLECTIVE, (5,), (6,), (5,), 300.0, "reduce_scatter_tensor", "fsdp"),
        Node("u.wait", Kind.WAIT, (4,), (), (3, 4), collective=4),
        Node("v.wait", Kind.WAIT, (6,), (), (5, 6), collective=6),
        Node("output", Kind.OUTPUT, (7, 8)),
    ]
    problem = Problem("small", tuple(nodes), tuple(storages), {"fsdp": Group(8, True)})
    order, deferred = filled(problem, problem.original_order, np.array(99))
    assert deferred == ["u"]
    assert replay(problem, order).step_us == 50 + 300 + 0.5


@pytest.mark.slow
def test_a_real_graph_defers_the_gradients_of_its_norms() -> None:
    problem = read_problem(INSTANCES / "llama3_8b_bw_64_1d.json.gz", comm_scale=4)
    result = schedule(problem, Options(allocator="none"))
    deferred = [d.collective for d in result.decisions if d.reason == "deferred"]
    assert len(deferred) > 40
    assert max(problem.nodes[v].time_us for v in deferred) < 150  # gradients of 4,096 numbers
    assert result.scheduled.step_us < 1.04 * 2_006_600
