"""The fast clock says what the judge says, with contention and without; what is expected comes true."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.simulate.clock import PlainClock, SharedClock, StepTimes, StepTrail
from tests.judge.test_contention import contended, two_groups, with_lanes
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order

RAIL = {"fsdp": "rail", "ep": "rail"}
SEEDS = st.integers(0, 2**32)


@given(problems(), with_lanes)
@examples(200)
def test_times_are_those_of_the_replay(problem: Problem, contention: Contention) -> None:
    slowed, unstretched = contended(problem, contention), contended(problem, replace(contention, stretch={}))
    check_times(slowed, SharedClock(StepTimes(slowed)))
    check_times(unstretched, SharedClock(StepTimes(unstretched), forecast=True))
    check_times(problem, SharedClock(StepTimes(replace(problem, contention=Contention(lanes=1)))))
    check_times(problem, PlainClock(StepTimes(problem)))


def check_times(problem: Problem, clock: PlainClock | SharedClock) -> None:
    for seed in range(3):
        order, each = random_order(problem, seed), clock.copied()
        timeline, at = replay(problem, order), list[float]()
        for v in order:
            at.append(each.clock_us)
            each.run((v,))
        assert at == pytest.approx([timeline.at_us[v] for v in order], rel=1e-9)
        assert each.end_us() == pytest.approx(timeline.step_us, rel=1e-9)
        for v in problem.collectives:
            assert each.completes_us(v) == each.finish_us[v] == pytest.approx(timeline.finish_us[v], rel=1e-9)


@given(problems(), st.none() | with_lanes, SEEDS)
@examples(200)
def test_steps_and_stalls_are_those_of_the_replay(problem: Problem, contention: Contention | None, seed: int) -> None:
    problem, exact = (problem, 0.0) if contention is None else (contended(problem, contention), 1e-9)
    order = random_order(problem, seed)
    timeline, times = replay(problem, order), StepTimes(problem)
    assert times.of(order) == pytest.approx(timeline.step_us, rel=exact, abs=0.0)
    trace = times.trace(order)
    assert trace.at_us == pytest.approx(timeline.at_us, rel=exact, abs=0.0)
    assert trace.stall_us == pytest.approx(timeline.stall_us, rel=exact, abs=1e-9 * timeline.step_us)
    assert [trace.finish_us[v] for v in problem.collectives] == pytest.approx(
        [timeline.finish_us[v] for v in problem.collectives], rel=exact, abs=0.0
    )


def join_orders(order: list[int], other: list[int], seed: int) -> list[int]:
    """The order, in some middle part of it as the other one."""
    begin, end = sorted((seed % (len(order) + 1), seed // 1000 % (len(order) + 1)))
    part = set(order[begin:end])
    return [*order[:begin], *(v for v in other if v in part), *order[end:]]


@given(problems(), st.none() | with_lanes, SEEDS)
@examples(200)
def test_drawn_steps_are_those_of_replays_at_these_times(
    problem: Problem, contention: Contention | None, seed: int
) -> None:
    problem = problem if contention is None else contended(problem, contention)
    orders = [problem.original_order, random_order(problem, seed)]
    factors = np.random.default_rng(seed).choice((0.0, 0.5, 1.0, 3.0), (len(problem.nodes), 4))
    drawn = [StepTimes(problem).drawn(order, factors.T.tolist()) for order in orders]
    for factor, steps_us in zip(factors.T, np.transpose(drawn), strict=True):
        times = zip(problem.nodes, factor.tolist(), strict=True)
        at_draw = replace(problem, nodes=tuple(node._replace(time_us=node.time_us * by) for node, by in times))
        assert steps_us == pytest.approx([replay(at_draw, order).step_us for order in orders], rel=1e-9)


@given(problems(), st.none() | with_lanes, SEEDS, st.lists(SEEDS, min_size=1, max_size=4))
def test_a_trail_says_what_is_said_of_whole_orders(
    problem: Problem, contention: Contention | None, seed: int, seeds: Sequence[int]
) -> None:
    if contention is not None:
        problem = contended(problem, contention)
    times, order = StepTimes(problem), random_order(problem, seed)
    trail, others = StepTrail(times, order), [random_order(problem, each) for each in seeds]
    for other in (order, *others, *(join_orders(order, other, seed) for other in others), order):
        assert trail.of(other) == times.of(other)


def test_the_drawn_example() -> None:
    problem, compute = two_groups(), two_groups().nodes[0]._replace(kind=Kind.COMPUTE, group=None)
    nodes = (*problem.nodes, *(compute._replace(name=f"c{us}", time_us=us) for us in (10.0, 30.0)))
    problem = replace(problem, nodes=nodes, contention=Contention(links=RAIL))
    first, second = len(nodes) - 2, len(nodes) - 1
    clock = SharedClock(StepTimes(problem))
    clock.run((0,))
    assert clock.free_us("fsdp") == 40.0
    clock.run((first,))
    clock.run((2,))
    assert (clock.free_us("fsdp"), clock.free_us("ep")) == (70.0, 50.0)  # as if both went on together
    clock.run((second,))
    assert (clock.clock_us, clock.completes_us(2)) == (40.0, 50.0)
    clock.run((4,))
    assert (clock.clock_us, clock.finish_us[2]) == (60.0, 50.0)


def test_what_is_not_finished_is_never_said_to_be_by_now() -> None:
    """What stands behind another on its stream is expected as if nothing came in between."""
    gather, exchange = two_groups().nodes[0], two_groups().nodes[2]
    compute = gather._replace(name="compute", kind=Kind.COMPUTE, group=None, time_us=60.0)
    nodes = (gather, gather._replace(name="second", time_us=10.0), exchange._replace(time_us=40.0), compute)
    nodes = (*nodes, Node("wait", Kind.WAIT, collective=1))
    problem = Problem("queue", nodes, (), two_groups().groups, contention=Contention(links=RAIL))
    clock = SharedClock(StepTimes(problem))
    clock.run((0, 1, 2, 3))
    assert clock.finish_us[1] == 50.0  # but the gather shares its link until 80
    assert 60.0 < clock.completes_us(1) < 60.1
    clock.run((4,))
    assert clock.clock_us == 90.0
