"""The scheduler's times, with contention and without, are those that the judges replay; what is expected comes true."""

from dataclasses import replace

import pytest
from hypothesis import given

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler.list_scheduler import StreamTimes
from overlap_sched.simulate.clock import FifoStreams, SharedStreams
from tests.judge.test_contention import contended, two_groups, with_lanes
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order

RAIL = {"fsdp": "rail", "ep": "rail"}


def run(streams: StreamTimes, problem: Problem, order: list[int]) -> list[float]:
    """When each node is done with on the compute stream."""
    clock_us, left = 0.0, []
    for v in order:
        node = problem.nodes[v]
        if node.kind is Kind.COLLECTIVE:
            streams.launch(v, clock_us)
        elif node.kind is Kind.WAIT:
            if node.collective is not None:
                clock_us = streams.wait(node.collective, clock_us)
        else:
            share = problem.contention.share_of(node.flops, node.bytes)
            clock_us = streams.compute(node.time_us, clock_us, share)
        left.append(clock_us)
    return left


@given(problems(), with_lanes)
@examples(200)
def test_times_are_those_of_the_replay(problem: Problem, contention: Contention) -> None:
    slowed = contended(problem, replace(contention, stretch={}))  # which this clock leaves out
    for made, times in ((slowed, SharedStreams), (problem, SharedStreams), (problem, FifoStreams)):
        check_times(made, times)


def check_times(problem: Problem, times: type[SharedStreams] | type[FifoStreams]) -> None:
    for seed in range(3):
        order = random_order(problem, seed)
        streams, timeline = times(problem), replay(problem, order)
        at = run(streams, problem, order)
        later = [*order[1:], None]
        expected = [timeline.step_us if w is None else timeline.at_us[w] for w in later]
        assert at[:-1] == pytest.approx(expected[:-1], rel=1e-9)
        assert streams.end_us(at[-1]) == pytest.approx(timeline.step_us, rel=1e-9)
        for v in problem.collectives:
            assert streams.completes_us(v) == streams.finish_us[v] == pytest.approx(timeline.finish_us[v], rel=1e-9)


def test_the_drawn_example() -> None:
    problem = replace(two_groups(), contention=Contention(links=RAIL))
    streams = SharedStreams(problem)
    streams.launch(0, 0.0)
    assert streams.free_us("fsdp") == 40.0
    assert streams.compute(10.0, 0.0) == 10.0
    streams.launch(2, 10.0)
    assert (streams.free_us("fsdp"), streams.free_us("ep")) == (70.0, 50.0)  # as if both went on together
    assert streams.compute(30.0, 10.0) == 40.0
    assert streams.completes_us(2) == 50.0
    assert (streams.wait(0, 40.0), streams.finish_us[2]) == (60.0, 50.0)


def test_what_is_not_finished_is_never_said_to_be_by_now() -> None:
    """What stands behind another on its stream is expected as if nothing came in between."""
    gather, exchange = two_groups().nodes[0], two_groups().nodes[2]
    nodes = (gather, gather._replace(name="second", time_us=10.0), exchange._replace(time_us=40.0))
    problem = Problem("queue", nodes, (), two_groups().groups, contention=Contention(links=RAIL))
    streams = SharedStreams(problem)
    for v in range(3):
        streams.launch(v, 0.0)
    assert streams.compute(60.0, 0.0) == 60.0
    assert streams.finish_us[1] == 50.0  # but the gather shares its link until 80
    assert 60.0 < streams.completes_us(1) < 60.1
    assert streams.wait(1, 60.0) == 90.0


def test_without_contention_what_is_expected_comes_true() -> None:
    problem = two_groups()
    streams = SharedStreams(problem)
    streams.launch(0, 0.0)
    streams.launch(2, streams.compute(10.0, 0.0))
    assert (streams.finish_us[0], streams.finish_us[2]) == (40.0, 30.0)
    assert streams.end_us(10.0) == 40.0
