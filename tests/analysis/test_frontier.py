"""The frontier: never a longer step for more memory, every point an order that the judges measure so.

And the search behind it: where it starts from, and how close it looks.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given

from overlap_sched import EXAMPLE, Options
from overlap_sched.analysis import frontier as module
from overlap_sched.analysis.frontier import FrontierSearch, frontier
from overlap_sched.analysis.frontier_points import Frontier
from overlap_sched.errors import OptionsError, UnreachableError
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.peak_memory import best_order
from overlap_sched.peak_memory.memory_graph import lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.published import dfs
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, Node, Order, Problem, Storage
from overlap_sched.problem.file import read_problem
from tests.support.exact.graphs import small_graph
from tests.support.exact.search import shortest_step
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, peak_by_definition, step_by_definition

MIB = 2**20


@pytest.fixture(scope="module")
def example() -> Frontier:
    return frontier(EXAMPLE)


def check(problem: Problem, found: Frontier) -> None:
    peaks, steps = ([getattr(point, name) for point in found.points] for name in ("peak_bytes", "step_us"))
    assert peaks == sorted(set(peaks))
    assert steps == sorted(set(steps), reverse=True)
    assert peaks[0] <= found.original.peak_bytes
    assert steps[-1] <= found.original.step_us * (1 + 1e-9)
    assert found.floor_bytes <= peaks[0]
    assert found.bound_us <= steps[-1] * (1 + 1e-9)
    for point in (found.original, *found.points):
        assert violation(problem, point.order) is None
        assert max(peak_by_definition(problem, list(point.order))) == point.peak_bytes
        assert step_by_definition(problem, list(point.order)) == pytest.approx(point.step_us)


def test_of_the_example(example: Frontier) -> None:
    check(EXAMPLE, example)
    assert [(point.peak_bytes // MIB, point.step_us) for point in example.points] == [(18, 190), (21, 150), (26, 120)]
    assert (example.bound_us, example.floor_bytes // MIB) == (120.0, 18)


@examples(20)
@given(problems())
def test_more_memory_is_never_a_longer_step(problem: Problem) -> None:
    found = frontier(problem, budgets=5)
    check(problem, found)
    assert found.budgets <= 5
    limits = [point.peak_bytes + extra for point in found.points for extra in (0, 1)]
    steps = [found.within(limit).step_us for limit in limits]
    assert steps == sorted(steps, reverse=True)
    assert found == frontier(problem, budgets=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 6])
def test_no_point_is_better_than_the_optimum_within_its_peak(seed: int) -> None:
    problem = small_graph(seed)
    found = frontier(problem, budgets=6)
    for point in found.points:
        optimum = shortest_step(problem, point.peak_bytes)
        assert optimum is not None
        assert optimum.step_us <= point.step_us
    assert shortest_step(problem, found.floor_bytes - 1) is None


def test_budgets_are_tried_where_most_is_unknown_and_no_more_than_asked() -> None:
    told: list[str] = []
    problem = small_graph(6)
    few = frontier(problem, budgets=3, tell=told.append)
    assert (few.budgets, len(told)) == (3, 4)  # and one line on the lowest peak
    assert told[0] == "looking for the lowest peak"
    assert told[1] == "budget 1 of 3: no limit"
    many = frontier(problem, budgets=9)
    assert 3 < many.budgets <= 9
    assert all(many.within(point.peak_bytes).step_us <= point.step_us for point in few.points)


@pytest.mark.slow
def test_a_limit_and_a_target_are_looked_at_closely() -> None:
    problem = small_graph(6)
    coarse = frontier(problem, budgets=3)
    limit = coarse.points[-1].peak_bytes - 1
    assert frontier(problem, budgets=3, limit_bytes=limit).budgets == 4
    target = coarse.points[-1].step_us
    close = frontier(problem, budgets=3, target_us=target)
    assert close.budgets > 3
    assert close.no_longer_than(target).peak_bytes <= coarse.no_longer_than(target).peak_bytes


def test_launch_orders_are_kept_where_asked() -> None:
    problem = small_graph(5)
    for point in frontier(problem, Options(preserve_collective_order="all"), budgets=5).points:
        launched = [v for v in point.order if problem.nodes[v].kind is Kind.COLLECTIVE]
        assert launched == sorted(launched)


def test_what_does_not_fit_is_said(example: Frontier) -> None:
    with pytest.raises(UnreachableError) as error:
        example.within(18 * MIB - 1)
    assert str(error.value) == (
        "'example' does not fit into 18.0 MiB: no order can: some step has at least 18.0 MiB live. "
        "Recompute more, shard over more ranks, or give it more memory."
    )
    found = frontier(EXAMPLE, Options(preserve_collective_order="all"))
    unproven = Frontier(found.problem, found.original, found.points[-1:], found.bound_us, 0, 3)
    with pytest.raises(UnreachableError) as error:
        unproven.within(20 * MIB)
    assert str(error.value) == (
        "'example' does not fit into 20.0 MiB: the lowest peak found is 26.0 MiB, 6.0 MiB above it. "
        "Recompute more, shard over more ranks, or give it more memory."
    )


def test_what_is_too_fast_is_said(example: Frontier) -> None:
    with pytest.raises(UnreachableError) as error:
        example.no_longer_than(119.9)
    assert str(error.value) == (
        "'example' cannot be done in 119.9 us: no order can be shorter than 120.0 us, whatever memory it is given. "
        "Ask for a longer step, or mend what it waits for: a faster network, less to send."
    )
    slow = Frontier(EXAMPLE, example.original, example.points[:1], 120.0, example.floor_bytes, 3)
    with pytest.raises(UnreachableError) as error:
        slow.no_longer_than(150.0)
    assert str(error.value) == (
        "'example' cannot be done in 150.0 us: the shortest step found takes 190.0 us, with a peak of 18.0 MiB. "
        "Ask for a longer step, or mend what it waits for: a faster network, less to send."
    )


def test_three_budgets_at_least() -> None:
    with pytest.raises(OptionsError) as error:
        frontier(EXAMPLE, budgets=2)
    assert str(error.value) == "budgets is 2; it is 3 or more: the lowest, the original and no limit."


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
    found = frontier(read_problem(INSTANCES / "dsv3_bw_64.json.gz", 4.0), budgets=6)
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
    found = frontier(problem, budgets=4, limit_bytes=limit)
    gaps = [100 * (found.within(budget).step_us / found.bound_us - 1) for budget in (plan.original_bytes, limit)]
    assert gaps[1] - gaps[0] <= 0.5
