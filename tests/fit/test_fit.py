"""Fitting: limits kept as the judge counts, the same twice, every value what it was; small cases by hand."""

import random
import re
from collections.abc import Hashable
from dataclasses import replace

import pytest

from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fit import FitPoint, fit
from overlap_sched.fit.planner import Start
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options, replayed_allocator
from overlap_sched.problem import EXAMPLE, Kind, Problem
from overlap_sched.scheduler.restrictions import needed_bytes
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import OFFLOAD, host_bytes
from overlap_sched.transform.host import HostLink
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Offload, Recompute
from tests.support.fit_graphs import computed, random_step

FAST = HostLink("fast", 1e12, 1.0)
PRICES = Prices(Roofline(), host=FAST)
MIB = 2**20


def meanings(problem: Problem) -> dict[str, Hashable]:
    """What every node computes: its name without what rewrites put before it, of the meanings of what it uses."""
    made: dict[str, Hashable] = {}
    maker = {s: node.name for node in problem.nodes for s in node.alloc}
    for node in problem.nodes:
        held = (made[maker[s]] for s in node.use if maker[s] in made)
        if node.op in ("reload", "offload") or node.name.startswith(("reload", "offload")):
            made[node.name] = made[_plain(node.name)]
            continue
        made[node.name] = hash((_plain(node.name), frozenset(held)))
    return made


def _plain(name: str) -> str:
    while name.startswith(("again", "reload", "offload")):
        name = name.split("_", 1)[1]
    return name.removesuffix("_wait")


def check_point(problem: Problem, point: FitPoint) -> None:
    """A plan is valid, what it says of itself is true, and every node of the problem computes what it did."""
    assert violation(point.problem, point.order) is None
    assert peak_memory(point.problem, point.order)[0] == point.peak_bytes
    assert replay(point.problem, point.order).step_us == point.step_us
    assert host_bytes(point.problem, point.order) == point.host_bytes
    before, after = meanings(problem), meanings(point.problem)
    assert before.items() <= after.items()
    assert all(after[name] == before[_plain(name)] for name in after)


QUICK = Options(strict=True, effort=1)
LIVE = replace(QUICK, allocator="none")
"""By live bytes alone."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.8, 0.5])
def test_random_steps_keep_their_limits(seed: int, share: float) -> None:
    problem = random_step(random.Random(seed), layers=8)
    peak, _ = peak_memory(problem, problem.original_order)
    limit = int(share * peak)
    found = fit(problem, PRICES, LIVE, memory_limit=limit, effort=1)
    for point in found.points:
        check_point(problem, point)
    assert found.fell_back is None
    assert found.fits == (found.best.peak_bytes <= limit)
    assert share < 0.7 or (found.fits and found.best.rewrites)
    peaks = [point.peak_bytes for point in found.points]
    steps = [point.step_us for point in found.points]
    assert peaks == sorted(set(peaks))
    assert steps == sorted(set(steps), reverse=True)
    assert found.without.step_us <= found.original.step_us
    again = fit(problem, PRICES, LIVE, memory_limit=limit, effort=1)
    assert (again.best.rewrites, again.best.order) == (found.best.rewrites, found.best.order)


@pytest.mark.parametrize("allocator", ["plain", "none"])
def test_a_limit_in_percent_is_of_what_the_original_order_needs(allocator: str) -> None:
    problem, options = saved(), replace(QUICK, allocator=allocator)
    needed = needed_bytes(LiveRanges(problem), problem.original_order, replayed_allocator(options))
    assert (needed > peak_memory(problem, problem.original_order)[0]) == (allocator == "plain")
    by_text, by_bytes = (fit(problem, PRICES, options, memory_limit=one, effort=0) for one in ("80%", needed * 4 // 5))
    assert by_text.limit_bytes == by_bytes.limit_bytes == needed * 4 // 5
    assert by_text.best.order == by_bytes.best.order


@pytest.mark.parametrize("seed", range(2))
def test_the_lowest_peak_within_a_slowdown(seed: int) -> None:
    problem = random_step(random.Random(seed), layers=6)
    tight = fit(problem, PRICES, QUICK, max_slowdown=0.0, effort=0)
    loose = fit(problem, PRICES, QUICK, max_slowdown=0.2, effort=0)
    for found, most in ((tight, 1.0), (loose, 1.2)):
        check_point(problem, found.best)
        assert found.fits
        assert found.best.step_us <= most * found.without.step_us * (1 + 1e-12)
    assert loose.best.peak_bytes <= tight.best.peak_bytes <= tight.without.peak_bytes


def saved(extra_us: float = 0.0) -> Problem:
    """A cheap value of 64 MiB from a small input, idle over a long and large computation, used at the end."""
    large = (("first", "value", 100.0), ("m", "first", 500.0), ("n", "m", 500.0), ("o", "n", 500.0), ("p", "o", 500.0))
    ahead = (("x", "", 1, 0.0), ("value", "x", 64, 10.0 + extra_us))
    return computed("saved", *ahead, *((v, u, 40, us) for v, u, us in large), ("grad", "value p", 1, 100.0))


def test_a_cheap_value_runs_again() -> None:
    found = fit(saved(), PRICES, memory_limit=130 * MIB, kinds=("recompute",))
    assert found.fits
    assert found.best.rewrites == (Recompute(("value",), ("grad",)),)
    assert found.best.step_us == pytest.approx(found.without.step_us + 10.0)


def test_a_dear_value_goes_to_the_host_behind_its_last_use() -> None:
    found = fit(saved(extra_us=5_000.0), PRICES, memory_limit=130 * MIB)
    assert found.fits
    assert found.best.rewrites == (Offload("value", ("grad",)),)
    assert found.best.step_us == pytest.approx(found.without.step_us + FAST.copy_us(64 * MIB))
    assert found.best.host_bytes == 64 * MIB
    assert [node.op for node in found.best.problem.nodes if node.kind is Kind.COLLECTIVE] == [OFFLOAD, "reload"]


def test_host_memory_has_a_limit() -> None:
    problem = saved(extra_us=5_000.0)
    found = fit(problem, PRICES, memory_limit=130 * MIB, host_limit_bytes=63 * MIB)
    assert found.best.rewrites == (Recompute(("value",), ("grad",)),)
    none = fit(problem, PRICES, memory_limit=130 * MIB, host_limit_bytes=63 * MIB, kinds=("offload",))
    assert not none.fits
    assert none.best.rewrites == ()


def test_a_slow_link_hides_nothing() -> None:
    prices = Prices(Roofline(), host=HostLink("slow", 1e10, 1.0))
    found = fit(saved(extra_us=5_000.0), prices, memory_limit=130 * MIB)
    assert found.best.rewrites == (Recompute(("value",), ("grad",)),)


def test_what_is_told_not_to_run_again_does_not() -> None:
    assert not fit(saved(), PRICES, memory_limit=130 * MIB, kinds=("recompute",), rerun=("m", "n")).fits


def test_a_limit_that_is_kept_anyway_changes_nothing() -> None:
    found = fit(EXAMPLE, PRICES, memory_limit=10**12)
    assert found.best.rewrites == ()
    assert found.best.step_us <= found.without.step_us


def test_extra_rewrites_are_candidates() -> None:
    one = Recompute(("value",), ("grad",))
    found = fit(saved(), PRICES, memory_limit=130 * MIB, kinds=(), extra=(Recompute(("m",), ("n",)), one))
    assert (found.fits, found.best.rewrites) == (True, (one,))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "memory_limit and max_slowdown are two questions"),
        ({"memory_limit": "1B", "max_slowdown": 0.1}, "memory_limit and max_slowdown are two questions"),
        ({"memory_limit": -1}, "memory_limit is -1; write bytes"),
        ({"max_slowdown": -0.5}, "max_slowdown is -0.5; it is 0 to 1, 0.05 for five percent."),
        ({"memory_limit": "1B", "kinds": ("melt",)}, "kinds has 'melt'; known are 'recompute', 'offload'."),
        ({"memory_limit": "1B", "host_limit_bytes": -1}, "host_limit_bytes is -1; it is 0 or more."),
        ({"memory_limit": "1B", "effort": 3}, "effort is 3; it is 0, 1 or 2."),
    ],
)
def test_questions_that_are_none(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(text)}"):
        fit(EXAMPLE, PRICES, **arguments)  # type: ignore[arg-type]


def test_only_the_runtime_memory_model() -> None:
    problem = Problem("t", EXAMPLE.nodes, EXAMPLE.storages, EXAMPLE.groups, "tracker")
    with pytest.raises(RewriteError, match="is in the 'tracker' memory model"):
        fit(problem, PRICES, memory_limit="1B")


def test_a_search_that_fails_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Start, limit_bytes: int, **_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Start, "at", fails)
    with pytest.warns(OverlapSchedWarning, match="overlap_sched fits nothing in 'saved': ValueError: no"):
        found = fit(saved(), PRICES, memory_limit=130 * MIB)
    assert found.best == found.without
    assert found.fell_back == "ValueError: no"
    with pytest.raises(VerificationError, match="fitting 'saved' failed: ValueError: no"):
        fit(saved(), PRICES, Options(strict=True), memory_limit=130 * MIB)
