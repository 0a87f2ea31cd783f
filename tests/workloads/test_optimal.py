"""Recomputation by constraint programming, beside all that can be run again on graphs small enough to try it."""

import random
from itertools import product

import pytest

from llama_repro.workloads.points import point
from llama_repro.workloads.repeats import repeated
from llama_repro.workloads.rows import frontier
from overlap_sched.problem import NodeId, Problem
from tests.support.steps_of_chains import chain

pytest.importorskip("ortools")

from llama_repro.workloads.optimal import UNIT_BYTES, fastest

MB = UNIT_BYTES
SIZES = (20 * MB, 30 * MB, 10 * MB, 25 * MB, 5 * MB)


def every_run(problem: Problem, forward: int) -> list[list[NodeId]]:
    """All runs in which each step of forward runs again at one place of backward, or not at all."""
    order = list(problem.original_order)
    backward = [v for v in order if problem.nodes[v].name.startswith("b")]
    runs = []
    for choice in product((None, *backward), repeat=forward):
        again = [(at, 2 + k) for k, at in enumerate(choice) if at is not None]
        runs.append([u for v in order for u in (*(k for at, k in again if at == v), v)])
    return runs


@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_runs_again_is_faster(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randrange(5, 40) * MB for _ in range(5)]
    problem = chain(sizes, [float(draw.randrange(5, 50)) for _ in sizes])
    points = [point(repeated(problem, run)) for run in every_run(problem, 4)]
    for best in frontier(points):  # each is the fastest within its own peak
        room = best.peak_bytes + 3 * MB  # weight, tangent and gradients are a byte each, and counted as a unit
        found = fastest(problem, room, 30.0)
        assert found.proven
        assert found.run is not None
        mine = point(repeated(problem, found.run))
        assert mine.peak_bytes <= room
        assert mine.step_us <= best.step_us


def test_what_cannot_fit_is_proven() -> None:
    found = fastest(chain(SIZES), 30 * MB, 30.0)
    assert (found.run, found.proven) == (None, True)


def test_within_the_original_peak_nothing_runs_again() -> None:
    problem = chain(SIZES)
    assert fastest(problem, 200 * MB, 30.0).run == list(problem.original_order)


def test_what_is_only_there_to_make_the_next_one_is_made_again_for_it() -> None:
    sizes = [5 * MB, 60 * MB, 50 * MB, 50 * MB, 50 * MB]
    problem = chain(sizes, [10.0, 10.0, 10.0, 100.0, 10.0], saved=[0, 2, 3])  # f3 is too dear, and f1 too large to keep
    found = fastest(problem, 120 * MB, 30.0)
    assert found.run is not None
    assert point(repeated(problem, found.run)).peak_bytes <= 120 * MB
    names = [problem.nodes[v].name for v in found.run]
    assert [name for at, name in enumerate(names) if name in names[:at]] == ["f1", "f2"]
