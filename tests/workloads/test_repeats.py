"""Runs that repeat steps, as problems, on graphs small enough to count by hand."""

import pytest

from llama_repro.workloads.points import Point, peak_at, point, slowdown_at
from llama_repro.workloads.repeats import repeated
from overlap_sched.problem import EXAMPLE, Kind, Problem
from tests.support.steps_of_chains import chain


def test_a_second_run_has_its_own_name_and_storage() -> None:
    problem = chain(sizes=(10, 4, 1))
    run = [0, 1, 2, 3, 4, 5, 2, 3, 6, 7, 8]
    twice = repeated(problem, run)
    assert [node.name for node in twice.nodes] == [
        *("weight", "tangents_1", "f0", "f1", "f2", "b2", "f0.again1", "f1.again1", "b1", "b0", "output")
    ]
    assert twice.nodes[8].use != problem.nodes[6].use
    assert point(twice).step_us == point(problem).step_us + problem.nodes[2].time_us + problem.nodes[3].time_us


def test_the_first_copy_dies_at_its_last_use_before_the_second() -> None:
    problem = chain(sizes=(100, 4, 1))
    run = [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]  # f0 again before b1
    twice = repeated(problem, run)
    first, second = (node.alloc[0] for node in twice.nodes if node.op == "f0")
    users = {s: [twice.nodes[v].name for v in range(len(run)) if s in twice.nodes[v].use] for s in (first, second)}
    assert users == {first: ["f1"], second: ["b1"]}
    # weight, tangent, f0, f1, and f2 or the first gradient: 107; without f0 there, f1 beside it is the peak
    assert (point(problem).peak_bytes, point(twice).peak_bytes) == (107, 106)


def test_a_run_without_repeats_is_the_problem() -> None:
    problem = chain(sizes=(3, 2, 1))
    assert repeated(problem, problem.original_order) == problem


def test_what_does_not_compute_runs_once() -> None:
    with pytest.raises(AssertionError, match="only compute runs again"):
        repeated(EXAMPLE, [*EXAMPLE.original_order[:9], 2, 9])
    with pytest.raises(AssertionError, match="every node runs"):
        repeated(chain(sizes=(3, 2, 1)), [0, 1, 2])


def test_figures_are_read_off_points() -> None:
    original = Point(100, 10.0)
    points = [original, Point(80, 10.4), Point(60, 11.0), Point(39, 12.0), Point(70, 12.0)]
    assert [slowdown_at(points, original, part) for part in (0.8, 0.6, 0.4)] == pytest.approx([0.04, 0.1, 0.2])
    assert slowdown_at(points, original, 0.2) is None
    assert [peak_at(points, original, slow) for slow in (0.05, 0.10)] == [0.8, 0.6]
    assert peak_at([Point(10, 99.0)], original, 0.05) is None


def test_the_example_is_measured_by_the_judge() -> None:
    assert point(EXAMPLE) == Point(21 * 2**20, 190.0)
    assert isinstance(EXAMPLE, Problem)
    assert EXAMPLE.nodes[0].kind is Kind.INPUT
