"""Recomputation by constraint programming, beside all that can be run again on graphs small enough to try it."""

from itertools import product

import pytest

from llama_repro.workloads.points import Point, point
from llama_repro.workloads.repeats import repeated
from overlap_sched.problem import NodeId, Problem
from tests.support.steps_of_chains import chain

pytest.importorskip("ortools")

from llama_repro.workloads.optimal import UNIT_BYTES, fastest

MB = UNIT_BYTES
SIZES = (20 * MB, 30 * MB, 10 * MB, 25 * MB, 5 * MB)
TIMES = (10.0, 40.0, 20.0, 5.0, 10.0)


def every_run(problem: Problem, forward: int) -> list[list[NodeId]]:
    """All runs in which each step of forward runs again at one place of backward, or not at all."""
    order = list(problem.original_order)
    backward = [v for v in order if problem.nodes[v].name.startswith("b")]
    runs = []
    for choice in product((None, *backward), repeat=forward):
        again = [(at, 2 + k) for k, at in enumerate(choice) if at is not None]
        runs.append([u for v in order for u in (*(k for at, k in again if at == v), v)])
    return runs


@pytest.fixture(scope="module")
def points() -> list[Point]:
    problem = chain(SIZES, TIMES)
    return [point(repeated(problem, run)) for run in every_run(problem, 4)]


@pytest.mark.parametrize("budget", [85, 75, 65, 60])
def test_nothing_that_runs_again_is_faster(points: list[Point], budget: int) -> None:
    problem = chain(SIZES, TIMES)
    room = (budget + 3) * MB  # weight, tangent and gradients are a byte each, and counted as a unit
    found = fastest(problem, room, 30.0)
    assert found.proven
    assert found.run is not None
    mine = point(repeated(problem, found.run))
    assert mine.peak_bytes <= room
    fits = [other.step_us for other in points if other.peak_bytes <= budget * MB]
    assert mine.step_us <= min(fits)


def test_what_cannot_fit_is_proven() -> None:
    found = fastest(chain(SIZES, TIMES), 30 * MB, 30.0)
    assert (found.run, found.proven) == (None, True)


def test_within_the_original_peak_nothing_runs_again() -> None:
    problem = chain(SIZES, TIMES)
    assert fastest(problem, 200 * MB, 30.0).run == list(problem.original_order)
