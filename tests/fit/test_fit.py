"""Fitting: limits kept as the judge counts, the same twice, every value what it was; cases by hand; parts; slots."""

import random
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fit import Fit, FitPoint, fit, planner
from overlap_sched.fit.answer import Faster, Held
from overlap_sched.fit.greedy import Above, Greedy
from overlap_sched.fit.planner import Start, held_best, point
from overlap_sched.fit.state import LinkTime, LiveState
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options, replayed_allocator
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from overlap_sched.report.units import duration
from overlap_sched.report.words.rewrites import answer_line, costs
from overlap_sched.scheduler.restrictions import needed_bytes
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import OFFLOAD, host_bytes
from overlap_sched.transform.dimension_graph import Cut
from overlap_sched.transform.prices import HostLink, Prices
from overlap_sched.transform.rewrites import Fission, Leave, Offload, Recompute, Slice
from overlap_sched.transform.search import Limit
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


def check_point(problem: Problem, one: FitPoint) -> None:
    """A plan is valid, what it says of itself is true, and every node of the problem computes what it did."""
    assert violation(one.problem, one.order) is None
    assert peak_memory(one.problem, one.order)[0] == one.peak_bytes
    assert replay(one.problem, one.order).step_us == one.step_us
    assert host_bytes(one.problem, one.order) == one.host_bytes
    before, after = meanings(problem), meanings(one.problem)
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
    for one in found.points:
        check_point(problem, one)
    assert found.fell_back is None
    assert found.fits == (found.best.peak_bytes <= limit)
    assert share < 0.7 or (found.fits and found.best.rewrites)
    peaks, steps = [one.peak_bytes for one in found.points], [one.step_us for one in found.points]
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


AGAIN, AWAY = Recompute(("value",), ("grad",)), Offload("value", ("grad",))
SLOW = Prices(Roofline(), host=HostLink("slow", 1e10, 1.0))
"""This link hides nothing."""
DEAR_US = 5_000.0


@pytest.mark.parametrize(
    ("extra_us", "prices", "given", "rewrites", "longer_us"),
    [
        (0.0, PRICES, {"kinds": ("recompute",)}, (AGAIN,), 10.0),
        (0.0, PRICES, {"kinds": ("recompute",), "rerun": ("m", "n")}, (), 0.0),
        (0.0, PRICES, {"kinds": (), "extra": (Recompute(("m",), ("n",)), AGAIN)}, (AGAIN,), 10.0),
        (DEAR_US, PRICES, {}, (AWAY,), FAST.copy_us(64 * MIB)),  # behind its last use
        (DEAR_US, PRICES, {"host_limit_bytes": 63 * MIB}, (AGAIN,), 10.0 + DEAR_US),
        (DEAR_US, PRICES, {"host_limit_bytes": 63 * MIB, "kinds": ("offload",)}, (), 0.0),
        (DEAR_US, SLOW, {}, (AGAIN,), 10.0 + DEAR_US),
    ],
)
def test_what_is_done_to_a_value(
    extra_us: float, prices: Prices, given: dict[str, Any], rewrites: tuple[Recompute | Offload, ...], longer_us: float
) -> None:
    """What is cheap runs again, if it may; what is dear goes to the host, if it has room and the link is fast."""
    found = fit(saved(extra_us), prices, memory_limit=130 * MIB, **given)
    assert (found.fits, found.best.rewrites) == (rewrites != (), rewrites)
    assert found.best.step_us == pytest.approx(found.without.step_us + longer_us)
    copies = [node.op for node in found.best.problem.nodes if node.kind is Kind.COLLECTIVE]
    assert (found.best.host_bytes, copies) == ((64 * MIB, [OFFLOAD, "reload"]) if AWAY in rewrites else (0, []))


def test_a_limit_that_is_kept_anyway_changes_nothing() -> None:
    found = fit(EXAMPLE, PRICES, memory_limit=10**12)
    assert found.best.rewrites == ()
    assert found.best.step_us <= found.without.step_us


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
def test_questions_that_are_none(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(text)}"):
        fit(EXAMPLE, PRICES, **arguments)


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


ALONE = Prices(Roofline())
"""Without copies to the host."""


def wide() -> Problem:
    """A batch, two large values of it, a gradient that is a sum, and a weight that takes it in place."""
    node, kind = Node, Kind
    nodes = (
        node("w", kind.INPUT, alloc=(0,)),
        node("x", kind.INPUT, alloc=(1,)),
        node("a", kind.COMPUTE, (0, 1), (2,), (0, 1), 400.0, "aten.mm", flops=10**10, bytes=10**6),
        node("b", kind.COMPUTE, (2,), (3,), (2,), 400.0, "aten.gelu", flops=10**10, bytes=10**6),
        node("g", kind.COMPUTE, (2, 3), (4,), (2, 3), 400.0, "aten.mm", flops=10**10, bytes=10**6),
        node("add", kind.COMPUTE, (0, 2, 4), (), (0, 4), 1.0, "aten.add_.Tensor", bytes=10**6),
        node("output", kind.OUTPUT, (4,), (), (4,)),
    )
    sizes = (1, 8, 256, 256, 1)
    return Problem("wide", nodes, tuple(Storage(size * MIB, s == 0) for s, size in enumerate(sizes)))


def in_parts(parts: int) -> Fission:
    """All of it."""
    return Fission(
        ("a", "b", "g"),
        parts,
        (Slice("x", Cut(0, 1, 64 // parts), 8 * MIB, True, "x"),),
        (Leave("g", "sum", Cut(0), MIB, "g"),),
        full=(("g", 0),),
    )


WAYS = (in_parts(2), in_parts(4))


def asked(limit: int) -> Fit:
    return fit(wide(), ALONE, memory_limit=limit * MIB, fissions=WAYS)


def test_the_fewest_parts_that_fit() -> None:
    whole, two, four = 514, 266, 139
    found = asked(300)
    assert (found.original.peak_bytes, found.best.peak_bytes) == (whole * MIB, two * MIB)
    assert found.best.rewrites == (WAYS[0],)
    assert asked(200).best.rewrites == (WAYS[1],)
    assert asked(200).best.peak_bytes == four * MIB
    assert not asked(100).fits
    assert fit(wide(), ALONE, memory_limit=300 * MIB).best.rewrites == ()


def test_the_lowest_peak_is_that_of_the_most_parts() -> None:
    found = fit(wide(), ALONE, max_slowdown=0.6, fissions=WAYS)
    assert found.best.rewrites == (WAYS[1],)
    assert found.best.step_us <= 1.6 * found.without.step_us
    assert fit(wide(), ALONE, max_slowdown=0.0, fissions=WAYS).best.rewrites == ()


def test_what_cannot_be_done_is_left_out() -> None:
    unknown = Fission(("nothing",), 2)
    leaving = Fission(("a", "b"), 2, WAYS[0].slices)
    assert fit(wide(), ALONE, memory_limit=300 * MIB, fissions=(unknown, leaving, *WAYS)).fits


def test_what_a_fission_saves_and_costs_is_told() -> None:
    found = asked(300)
    assert found.held is not None
    assert (found.held.over_bytes, found.held.reserved_bytes >= found.best.peak_bytes) == (0, True)
    ((cost, op),) = costs(found)
    assert op == "3 nodes in 2 parts"
    assert -cost.held_bytes == found.original.peak_bytes - found.best.peak_bytes
    assert cost.compute_us == found.best.step_us - found.original.step_us > 0


def holes() -> Problem:
    """Every other value of 5 MiB dies: what is as large as these together finds no room between the others."""
    values = [(f"v{k}", "w", 5, 1.0) for k in range(40)]
    odds, evens = (" ".join(name for name, *_ in values[k::2]) for k in range(2))
    ends = (("first", odds, 0, 1.0), ("large", "w first", 100, 1.0), ("last", f"{evens} large", 1, 1.0))
    return computed("holes", ("w", "", 1, 0.0), *values, *ends)


def test_a_plan_that_the_allocator_holds_is_preferred() -> None:
    problem, slow = holes(), wide()
    torn, whole = (point((), one, one.original_order) for one in (problem, Problem("w", slow.nodes[:1], slow.storages)))
    whole = replace(whole, step_us=2 * torn.step_us)
    plain = Options(allocator="plain")
    limit = Limit(torn.peak_bytes, None)
    best, held = held_best([torn], limit, plain)
    assert held is not None
    assert (best, held.faster) == (torn, None)
    assert held.reserved_bytes > torn.peak_bytes
    assert held.over_bytes > 0
    picked, told = held_best([torn, whole], limit, plain)
    assert (picked, told.faster) == (whole, Faster(torn.step_us, held.over_bytes))
    answer = Fit(whole, torn, torn, limit.bytes, None, (torn, whole), 2, held=told)
    assert f" The plan of {duration(torn.step_us)} is not picked: torch's allocator needs a" in answer_line(answer)
    worse = replace(torn, step_us=3 * torn.step_us)  # lacks as much: the shorter of the two is picked
    assert held_best([torn, worse], limit, plain) == (torn, held)
    assert held_best([torn, whole], limit, Options(allocator="none"))[0] == torn
    for enough in (Limit(held.reserved_bytes, None), Limit(None, 10.0**6)):
        assert held_best([torn], enough, plain)[1] == Held(held.reserved_bytes)


def test_what_the_allocator_lacks_is_told() -> None:
    problem = holes()
    peak, _ = peak_memory(problem, problem.original_order)
    found = fit(problem, ALONE, Options(allocator="plain"), memory_limit=peak, kinds=())
    assert (found.live_bytes_fit, found.fits) == (True, False)
    assert answer_line(found).startswith("Only live bytes fit into ")
    assert fit(problem, ALONE, Options(allocator="none"), memory_limit=peak, kinds=()).fits


def test_where_the_allocator_cannot_hold_a_plan_lower_ones_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator needs as much again as is live above 110 MiB: the plan of 130 MiB is not the answer."""

    def needed(points: Sequence[FitPoint], limit: Limit, options: Options) -> tuple[FitPoint, Held]:
        best, low = limit.best(points), min(points, key=lambda one: one.peak_bytes)
        return (low, Held(0)) if low.peak_bytes <= 110 * MIB else (best, Held(0, best.peak_bytes - 110 * MIB))

    monkeypatch.setattr(planner, "held_best", needed)
    found = fit(saved(), ALONE, memory_limit=145 * MIB, kinds=("recompute",))
    assert (found.fits, found.best.peak_bytes <= 110 * MIB) == (True, True)


def test_slots_never_overlap() -> None:
    link = LinkTime(HostLink("a byte per us", 1e6, 0.0))
    assert link.slots(10, 0.0, 15.0) is None
    assert link.slots(10, 0.0, 30.0) == (0.0, 20.0)
    link.take(10, 0.0, 20.0)
    assert link.slots(10, 0.0, 30.0) is None
    assert link.slots(5, 0.0, 30.0) == (10.0, 15.0)
    assert link.slots(10, 0.0, 60.0) == (10.0, 50.0)


def chain() -> Problem:
    """A value of 64 MiB of one of 64 MiB that nobody else uses; both made from x, then a long computation."""
    ahead = (("x", "", 1, 0.0), ("h", "x", 64, 5.0), ("value", "h", 64, 10.0))
    names = ["value", *(f"m{k}" for k in range(6))]
    large = ((v, u, 40 if v < "m4" else 1, 500.0) for u, v in pairwise(names))
    return computed("chain", *ahead, *large, ("grad", "value m5", 1, 100.0))


def test_what_a_copy_needs_is_made_again_too() -> None:
    found = fit(chain(), Prices(Roofline()), memory_limit=135 * MIB, kinds=("recompute",))
    assert found.fits
    assert found.best.rewrites == (AGAIN, Recompute(("h",), ("again_value",)))
    assert found.best.step_us == found.without.step_us + 15.0


def test_a_choice_that_is_not_needed_any_more_is_taken_back() -> None:
    problem = chain()
    state = LiveState(problem, 135 * MIB, None)
    greedy = Greedy(state, None, None, ("recompute",), 0.05)
    greedy.run()
    assert sum(bool(copy.parts) for copies in state.copies.values() for copy in copies) == 2
    state.limit_bytes = 10**12
    greedy.run()
    assert not any(copy.parts for copies in state.copies.values() for copy in copies)
    assert state.profile.tolist() == LiveState(problem, 10**12, None).profile.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_above_a_limit(seed: int) -> None:
    """By prefix sums and by the places themselves."""
    rng = random.Random(seed)
    excess = np.array([rng.choice((0, 0, 3, 10, 50)) for _ in range(40)], dtype=np.int64)
    above = Above(excess)
    for _ in range(50):
        begin, end, nbytes = rng.randrange(41), rng.randrange(41), rng.choice((1, 5, 20, 100))
        assert above.taken(begin, end, nbytes) == sum(min(int(one), nbytes) for one in excess[begin:end])
        assert above.any(begin, end) == bool((excess[begin:end] > 0).any())
