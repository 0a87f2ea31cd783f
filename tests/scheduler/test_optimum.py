"""The scheduler against proven optima, torch's orders, and committed figures and digests; the exact search itself."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overlap_sched import Options, read_problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, peak_memory, violation
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem
from overlap_sched.scheduler.beam_search import Beam, beam_search
from overlap_sched.scheduler.task import Candidate, Reference
from tests.support.exact_search import shortest_step
from tests.support.examples import examples
from tests.support.fsdp import MIB, OPTIMAL_US, SMALL_SEEDS, TORCH, fsdp_step, small_step
from tests.support.fsdp import SEEDS as FSDP_SEEDS
from tests.support.graphs import problems
from tests.support.oracle import all_orders, peak_by_definition, step_by_definition
from tests.support.order_digests import DIGESTS, cases, digests_of
from tests.support.small_graphs import (
    DATA,
    Row,
    measure,
    read_golden,
    small_graphs,
    summary,
)

FAST = slice(1, None, 12)
"""Of the held-out seeds, those that fast tests look at."""


def behind_torch(seed: int) -> list[tuple[int, float]]:
    """The orders of torch's pass that are shorter than ours in the same memory: by seed, and how much."""
    problem, _ = fsdp_step(seed)
    base_bytes, _ = peak_memory(problem, problem.original_order)
    found = []
    for torch_us, peak_bytes in TORCH[seed]:
        ours_us = schedule(problem, Options(headroom=max(peak_bytes - base_bytes, 0))).scheduled.step_us
        if ours_us > torch_us * (1 + 1e-9):
            found.append((seed, ours_us / torch_us))
    return found


def not_optimal(seed: int) -> bool:
    problem, headroom = small_step(seed)
    return schedule(problem, Options(headroom=headroom)).scheduled.step_us > OPTIMAL_US[seed] * (1 + 1e-9)


@pytest.mark.parametrize("seeds", [FSDP_SEEDS[FAST], pytest.param(FSDP_SEEDS, marks=pytest.mark.slow)])
def test_none_is_behind_torch(seeds: range) -> None:
    assert [row for seed in seeds for row in behind_torch(seed)] == []


@pytest.mark.parametrize(
    ("seeds", "most"), [(SMALL_SEEDS[FAST], 0), pytest.param(SMALL_SEEDS, 2, marks=pytest.mark.slow)]
)
def test_nearly_all_are_optimal(seeds: range, most: int) -> None:
    assert len([seed for seed in seeds if not_optimal(seed)]) <= most


@pytest.mark.parametrize("seed", [0, 10])
def test_the_optima_are_those_of_the_exact_search(seed: int) -> None:
    problem, headroom = small_step(seed)
    base_bytes, _ = peak_memory(problem, problem.original_order)
    optimum = shortest_step(problem, base_bytes + headroom)
    assert optimum is not None
    assert optimum.step_us == OPTIMAL_US[seed]


def search(
    problem: Problem, limit: object, width: int, beat_us: float = float("inf"), falls_back: bool = False
) -> Candidate | None:
    reference = Reference(problem, problem.original_order)
    look = Beam(width, falls_back=falls_back)
    return beam_search(reference, np.array(limit, dtype=np.int64), (), beat_us, look).made


def test_of_the_example() -> None:
    found = [search(EXAMPLE, limit * MIB, 8) for limit in (5, 21, 26)]
    assert [one and one.step_us for one in found] == [None, 150.0, 120.0]
    assert search(EXAMPLE, 26 * MIB, 8, beat_us=120.0) is None


@given(problems(), st.booleans(), st.integers(1, 4), st.booleans())
def test_orders_are_valid_and_within_the_budget(
    problem: Problem, positional: bool, width: int, falls_back: bool
) -> None:
    profile = memory_profile(problem, problem.original_order)
    found = search(problem, profile if positional else max(profile), width, falls_back=falls_back)
    if found is None:
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
    found = search(problem, limit, 1_000)
    assert found is not None
    assert found.step_us >= optimum.step_us * (1 - 1e-9)


def test_pairs_are_kept() -> None:
    reference = Reference(EXAMPLE, EXAMPLE.original_order)
    found = beam_search(reference, np.array(10**12), ((5, 6), (6, 4)), float("inf"), Beam(8)).made
    assert found is None  # 5 needs 4: a ring has no order
    found = beam_search(reference, np.array(10**12), ((5, 6),), float("inf"), Beam(8)).made
    assert found is not None
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


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [measure(problem) for problem in small_graphs()]


@pytest.mark.slow
def test_optima_are_those_of_the_file(rows: list[Row]) -> None:
    golden, now = read_golden(), summary(rows)
    assert {row.name: row.optimal_us for row in rows} == golden.optimal_us
    assert now.mean_percent <= golden.mean_percent  # gaps do not grow
    assert now.worst_percent <= golden.worst_percent
    assert all(row.optimal_us <= row.scheduled_us <= row.original_us for row in rows)


EXPECTED = json.loads(DIGESTS.read_text(encoding="utf-8"))
CASES = list(cases())
FAST_INSTANCE = "llama3_8b_bw_64_2d x1 runtime"


def test_every_instance_has_its_digests() -> None:
    assert list(EXPECTED) == [name for name, *_ in CASES]


@pytest.mark.parametrize(
    ("name", "path", "comm_scale", "model"),
    [pytest.param(*case, marks=() if case[0] == FAST_INSTANCE else pytest.mark.slow, id=case[0]) for case in CASES],
)
def test_orders_and_decisions_are_those_committed(name: str, path: Path, comm_scale: float, model: str) -> None:
    assert digests_of(path, comm_scale, model) == EXPECTED[name], (
        "an order or a decision has changed; if it was meant to: python -m tests.support.order_digests"
    )


MOST_ORDERS = 400


def measured_orders(problem: Problem) -> list[tuple[int, float]]:
    """(peak, step) of every valid order; the graph is passed over where there are too many."""
    orders = list(islice(all_orders(problem), MOST_ORDERS + 1))
    assume(1 < len(orders) <= MOST_ORDERS)
    return [(max(peak_by_definition(problem, order)), step_by_definition(problem, order)) for order in orders]


def budgets(measured: list[tuple[int, float]]) -> tuple[int, ...]:
    """One that no order keeps, the least that some do, one between, one that all do."""
    peaks = sorted({peak for peak, _ in measured})
    return peaks[0] - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]


@examples(60)
@given(problems(max_steps=6))
def test_no_order_is_shorter_and_one_is_as_short(problem: Problem) -> None:
    measured = measured_orders(problem)
    for budget in budgets(measured):
        steps = [step for peak, step in measured if peak <= budget]
        found = shortest_step(problem, budget)
        if not steps:
            assert found is None
        else:
            assert found is not None
            assert found.step_us == min(steps)
            assert step_by_definition(problem, list(found.order)) == found.step_us
            assert max(peak_by_definition(problem, list(found.order))) <= budget
