"""The beam search of small graphs: what it says of its orders is true, and wide enough it finds the optimum."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, read_problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, peak_memory, violation
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem
from overlap_sched.scheduler.beam_search import Beam, BeamSearchResult, beam_search
from overlap_sched.scheduler.task import Reference
from tests.support.exact.search import shortest_step
from tests.support.exact.table import DATA
from tests.support.examples import examples
from tests.support.graphs import problems

MIB = 2**20


def search(
    problem: Problem, limit: object, width: int, beat_us: float = float("inf"), falls_back: bool = False
) -> BeamSearchResult:
    reference = Reference(problem, problem.original_order)
    look = Beam(width, falls_back=falls_back)
    return beam_search(reference, np.array(limit, dtype=np.int64), (), beat_us, look)


def test_of_the_example() -> None:
    assert search(EXAMPLE, 21 * MIB, 8).step_us == 150.0
    assert search(EXAMPLE, 26 * MIB, 8).step_us == 120.0
    assert search(EXAMPLE, 26 * MIB, 8, beat_us=120.0).order is None
    assert search(EXAMPLE, 5 * MIB, 8).order is None


@given(problems(), st.booleans(), st.integers(1, 4), st.booleans())
def test_orders_are_valid_and_within_the_budget(
    problem: Problem, positional: bool, width: int, falls_back: bool
) -> None:
    profile = memory_profile(problem, problem.original_order)
    found = search(problem, profile if positional else max(profile), width, falls_back=falls_back)
    if found.order is None:
        assert positional or not falls_back  # what has a fallback in one budget for all never ends nowhere
        return
    assert violation(problem, found.order) is None
    after = memory_profile(problem, found.order)
    assert max(after) == found.peak_bytes
    assert replay(problem, found.order).step_us == pytest.approx(found.step_us)
    assert all(live <= allowed for live, allowed in zip(after, profile, strict=True)) or not positional
    assert max(after) <= max(profile)


@given(problems(max_steps=6))
@examples(50)
def test_nothing_is_better_than_the_optimum(problem: Problem) -> None:
    limit, _ = peak_memory(problem, problem.original_order)
    optimum = shortest_step(problem, limit)
    assert optimum is not None
    assert search(problem, limit, 1_000).step_us >= optimum.step_us * (1 - 1e-9)


def test_pairs_are_kept() -> None:
    reference = Reference(EXAMPLE, EXAMPLE.original_order)
    found = beam_search(reference, np.array(10**12), ((5, 6), (6, 4)), float("inf"), Beam(8))
    assert found.order is None  # 5 needs 4: a ring has no order
    found = beam_search(reference, np.array(10**12), ((5, 6),), float("inf"), Beam(8))
    assert found.order is not None
    assert found.order.index(5) < found.order.index(6)


def test_hard_graphs() -> None:
    optimal = json.loads((DATA / "hard" / "optimal.json").read_text())
    gaps = {}
    for name, known in optimal.items():
        gaps[name] = schedule(read_problem(DATA / "hard" / f"{name}.json")).scheduled.step_us / known["optimal_us"] - 1
    assert max(gaps.values()) < 0.1, gaps
    assert sum(gap < 1e-9 for gap in gaps.values()) >= 8, gaps


@pytest.mark.parametrize(("more", "searched"), [(0, True), (400, False)])
def test_only_small_graphs_are_searched(more: int, searched: bool) -> None:
    views = tuple(Node(f"view{k}", Kind.COMPUTE) for k in range(more))
    done = schedule(replace(EXAMPLE, nodes=(*EXAMPLE.nodes[:-1], *views, EXAMPLE.nodes[-1])), Options(effort=1))
    ahead = schedule(EXAMPLE, Options(effort=1)).work.looked
    assert (done.work.looked >= ahead > 0) == searched
