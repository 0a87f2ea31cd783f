"""Where the search behind a frontier starts from, and how close it looks."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from overlap_sched import EXAMPLE, Options
from overlap_sched.analysis import frontier as module
from overlap_sched.analysis.frontier import FrontierSearch, frontier
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.peak_memory import best_order
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.published import dfs
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, Node, Order, Problem, Storage
from overlap_sched.problem.file import read_problem
from tests.support.exact.graphs import small_graph
from tests.support.oracle import INSTANCES

MIB = 2**20


@dataclass(frozen=True)
class Kept:
    """What a scheduler returns that changes nothing."""

    order: Order


def silent(_: str) -> None:
    """Says nothing."""


def hills(apart: int = 80) -> Problem:
    """Two hills of 12 and 11 bytes, so far apart; each is 3 lower where what frees `x` and `y` runs before it."""
    chain = tuple(Node(f"step{k}", Kind.COMPUTE, deps=(3 + k,), time_us=1.0) for k in range(apart))
    nodes = (
        Node("x", Kind.INPUT, alloc=(0,)),
        Node("y", Kind.INPUT, alloc=(1,)),
        Node("high", Kind.COMPUTE, alloc=(2,), time_us=1.0),
        Node("free_x", Kind.COMPUTE, deps=(0,), use=(0,), time_us=1.0),
        *chain,
        Node("lower", Kind.COMPUTE, deps=(3 + apart,), alloc=(3,), time_us=1.0),
        Node("free_y", Kind.COMPUTE, deps=(1,), use=(1,), time_us=1.0),
    )
    return Problem("hills", nodes, (Storage(3), Storage(3), Storage(6), Storage(8)))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The peak of each order that was scheduled from, and the budget."""
    asked: list[tuple[int, int]] = []

    def kept(problem: Problem, options: Options) -> Kept:
        peak, _ = peak_memory(problem, problem.original_order)
        asked.append((peak, peak + int(options.headroom)))
        return Kept(problem.original_order)

    monkeypatch.setattr(module, "schedule", kept)
    return asked


def test_a_budget_below_the_original_starts_from_the_original_lowered(starts: list[tuple[int, int]]) -> None:
    search = FrontierSearch(hills(), Options(), silent)
    assert (search.original.peak_bytes, search.lowest_bytes) == (12, 8)
    search.at(11)
    assert starts == [(11, 11), (8, 11)]
    starts.clear()
    search.at(12)
    assert starts == [(12, 12), (8, 12)]
    starts.clear()
    search.at(8)
    assert starts == [(8, 8), (8, 8)]  # two orders as low
    search.at(8)
    assert len(starts) == 2


def test_the_best_order_of_another_budget_is_started_from(starts: list[tuple[int, int]]) -> None:
    search = FrontierSearch(EXAMPLE, Options(), silent)
    hidden = search._found((0, 1, 2, 4, 3, 6, 7, 5, 8, 9))
    assert (hidden.peak_bytes // MIB, hidden.step_us) == (26, 120.0)
    search.at(26 * MIB)
    assert [peak // MIB for peak, _ in starts] == [21, 18, 26]


def test_an_order_that_cannot_be_lowered_counts_at_its_own_peak(starts: list[tuple[int, int]]) -> None:
    search = FrontierSearch(hills(), Options(), silent)
    points = list(search.points)
    search.at(7)
    assert search.points == points
    assert starts == []


def test_a_target_is_closed_in_on() -> None:
    problem = small_graph(6)
    search = FrontierSearch(problem, Options(), silent)
    for budget_bytes in (MAX_TOTAL_BYTES, search.original.peak_bytes, search.lowest_bytes):
        search.at(budget_bytes)
    target_us = search.points[-1].step_us
    search.close_in(target_us)
    k = next(k for k, point in enumerate(search.points) if point.step_us <= target_us)
    enough, near = search.points[k].peak_bytes, 0.01 * (search.points[-1].peak_bytes - search.points[0].peak_bytes)
    refuted = [search.points[k - 1].peak_bytes, *(budget for budget in search.budgets if budget < enough)]
    assert enough - max(refuted) <= max(near, 1)


@pytest.mark.parametrize(("seed", "first_mib", "then_mib"), [(47, 36, 34), (72, 51, 39), (90, 43, 37)])
def test_a_lower_peak_found_on_the_way_is_a_budget_too(
    seed: int, first_mib: int, then_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small_graph(seed)
    plan = best_order(problem, "none", effort=0)
    monkeypatch.setattr(module, "best_order", lambda *_: plan)
    told: list[str] = []
    found = frontier(problem, budgets=6, tell=told.append)
    assert (plan.peak_bytes, found.points[0].peak_bytes) == (first_mib * MIB, then_mib * MIB)
    assert [line for line in told if line.endswith(f": {then_mib}.0 MiB")]


@pytest.mark.nightly
@pytest.mark.slow
def test_no_cliff_on_a_real_graph() -> None:
    """From the original peak down: no budget is given up at once that moving a few nodes could meet."""
    found = frontier(read_problem(INSTANCES / "dsv3_bw_64.json.gz", 4.0), Options(allocator="none"), budgets=6)
    original, lowest = found.original.peak_bytes, found.points[0].peak_bytes
    budgets = [original, original - 220, *(int(original * (1 - part)) for part in (0.001, 0.005, 0.01, 0.02)), lowest]
    gaps = [100 * (found.within(budget).step_us / found.bound_us - 1) for budget in budgets]
    assert gaps == sorted(gaps)
    assert max(after - before for before, after in pairwise(gaps)) <= 4.0
    assert gaps[0] <= 0.2
    assert gaps[1] - gaps[0] <= 0.1


@pytest.mark.nightly
@pytest.mark.slow
def test_no_cliff_where_the_lowest_peak_found_is_unlike_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth first, as in DeepSeek-V3 on 128 ranks: orders scheduled from that one alone are far from the best."""
    problem = read_problem(INSTANCES / "dsv3_bw_64.json.gz")
    graph = memory_graph_of(problem, "none")
    order = lead_with_inputs(graph, dfs(graph))
    plan = replace(best_order(problem, "none", effort=0), order=order, peak_bytes=peak_memory(problem, order)[0])
    monkeypatch.setattr(module, "best_order", lambda *_: plan)
    limit = int(plan.original_bytes * 0.99)
    assert plan.peak_bytes <= limit
    found = frontier(problem, Options(allocator="none"), budgets=4, limit_bytes=limit)
    gaps = [100 * (found.within(budget).step_us / found.bound_us - 1) for budget in (plan.original_bytes, limit)]
    assert gaps[1] - gaps[0] <= 0.5
