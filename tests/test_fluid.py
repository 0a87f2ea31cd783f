"""The scheduler's clock under contention tells the times that the judges replay; what it expects comes true."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from overlap_sched.contention import Contention
from overlap_sched.fluid import FluidStreams
from overlap_sched.problem import Kind, Problem
from overlap_sched.replay import replay
from tests.graphs import problems
from tests.oracle import random_order
from tests.test_contention import contended, contentions, two_groups


def run(streams: FluidStreams, problem: Problem, order: list[int]) -> list[float]:
    """When each node is done with on the compute stream."""
    left = []
    for v in order:
        node = problem.nodes[v]
        if node.kind is Kind.COLLECTIVE:
            streams.launch(v)
        elif node.kind is Kind.WAIT:
            if node.collective is not None:
                streams.wait(node.collective)
        else:
            streams.compute(node.time_us)
        left.append(streams.clock_us)
    return left


@given(problems(), contentions)
@settings(max_examples=200)
def test_its_times_are_those_of_the_replay(problem: Problem, contention: Contention) -> None:
    problem = contended(problem, contention)
    for seed in range(3):
        order = random_order(problem, seed)
        streams, timeline = FluidStreams(problem), replay(problem, order)
        at = run(streams, problem, order)
        later = [*order[1:], None]
        expected = [timeline.step_us if w is None else timeline.at_us[w] for w in later]
        assert at[:-1] == pytest.approx(expected[:-1], rel=1e-9)
        assert streams.end_us() == pytest.approx(timeline.step_us, rel=1e-9)
        for v in problem.collectives:
            assert streams.finished(v)
            assert streams.finish_us[v] == pytest.approx(timeline.finish_us[v], rel=1e-9)


def test_the_drawn_example() -> None:
    problem = replace(two_groups(), contention=Contention(links={"fsdp": "rail", "ep": "rail"}))
    streams = FluidStreams(problem)
    streams.launch(0)
    assert streams.free_us("fsdp") == 40.0
    streams.compute(10.0)
    streams.launch(2)
    assert (streams.free_us("fsdp"), streams.free_us("ep")) == (70.0, 50.0)  # as if both went on together
    streams.compute(30.0)
    assert not streams.finished(2)
    streams.wait(0)
    assert (streams.clock_us, streams.finish_us[2]) == (60.0, 50.0)


def test_without_contention_what_is_expected_comes_true() -> None:
    problem = two_groups()
    streams = FluidStreams(problem)
    streams.launch(0)
    streams.compute(10.0)
    streams.launch(2)
    assert (streams.finish_us[0], streams.finish_us[2]) == (40.0, 30.0)
    assert streams.end_us() == 40.0
