"""Plans that begin with a fission: which are measured, which are searched any further, and what the allocator says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from overlap_sched.cost import Roofline
from overlap_sched.fit import Fit, FitPoint, fit, planner
from overlap_sched.fit.answer import Faster, Held
from overlap_sched.fit.planner import FitContext, FitSearch, Ways, held_best, point
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.report.units import duration
from overlap_sched.report.words.rewrites import answer_line, costs
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import Cut
from overlap_sched.transform.prices import Prices, fissioned_us
from overlap_sched.transform.rewrites import Fission, Leave, Rewrite, Slice
from overlap_sched.transform.search import Limit
from tests.fit.test_fit import saved
from tests.support.fit_graphs import computed

MIB = 2**20
PRICES = Prices(Roofline())


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
    return fit(wide(), PRICES, memory_limit=limit * MIB, fissions=WAYS)


def test_the_fewest_parts_that_fit() -> None:
    whole, two, four = 514, 266, 139
    found = asked(300)
    assert (found.original.peak_bytes, found.best.peak_bytes) == (whole * MIB, two * MIB)
    assert found.best.rewrites == (WAYS[0],)
    assert asked(200).best.rewrites == (WAYS[1],)
    assert asked(200).best.peak_bytes == four * MIB
    assert not asked(100).fits
    assert fit(wide(), PRICES, memory_limit=300 * MIB).best.rewrites == ()


def test_the_lowest_peak_is_that_of_the_most_parts() -> None:
    found = fit(wide(), PRICES, max_slowdown=0.2, fissions=WAYS)
    assert found.best.rewrites == (WAYS[1],)
    assert found.best.step_us <= 1.2 * found.without.step_us
    assert fit(wide(), PRICES, max_slowdown=0.0, fissions=WAYS).best.rewrites == ()


def test_what_cannot_be_done_is_left_out() -> None:
    unknown = Fission(("nothing",), 2)
    leaving = Fission(("a", "b"), 2, WAYS[0].slices)
    assert fit(wide(), PRICES, memory_limit=300 * MIB, fissions=(unknown, leaving, *WAYS)).fits


def test_what_cannot_answer_is_not_made() -> None:
    """Two parts are slower than the whole, four slower than two: so nothing is made that is slower than what fits."""

    def made(limit: Limit) -> tuple[list[tuple[Rewrite, ...]], tuple[Fission, ...]]:
        wanted = FitContext(wide(), PRICES, Options(), (), None, None, 2)
        ways = Ways(FitSearch(wanted), WAYS[::-1], limit)
        ways.make()
        return [plan.rewrites for plan in ways.found], ways.left

    whole, two, four = 514, 266, 139
    step_us = sum(apply(wide(), WAYS[:1], PRICES).compute_us)
    assert made(Limit(whole * MIB, None)) == ([], WAYS)
    assert made(Limit(two * MIB, None)) == ([WAYS[:1]], WAYS[1:])
    assert made(Limit(four * MIB, None)) == ([WAYS[:1], WAYS[1:]], ())
    assert made(Limit(None, step_us)) == ([WAYS[:1]], WAYS[1:])


@pytest.mark.parametrize("ways", [WAYS, (in_parts(8), in_parts(16))])
def test_what_parts_take_is_known_before_they_are_made(ways: Sequence[Fission]) -> None:
    for one in ways:
        assert fissioned_us(wide(), one, PRICES) == pytest.approx(sum(apply(wide(), [one], PRICES).compute_us))


def test_what_a_fission_saves_and_costs_is_told() -> None:
    found = asked(300)
    assert found.held is not None
    assert (found.held.over_bytes, found.held.reserved_bytes >= found.best.peak_bytes) == (0, True)
    (cost,) = costs(found)
    assert (cost.kind, cost.op) == ("fission", "3 nodes in 2 parts")
    assert cost.bytes == found.original.peak_bytes - found.best.peak_bytes
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
    assert best == torn
    assert held is not None
    assert held.reserved_bytes > torn.peak_bytes
    assert held.over_bytes > 0
    assert held.faster is None
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
    found = fit(problem, PRICES, Options(allocator="plain"), memory_limit=peak, kinds=())
    assert (found.live_bytes_fit, found.fits) == (True, False)
    assert answer_line(found).startswith("Only live bytes fit into ")
    assert fit(problem, PRICES, Options(allocator="none"), memory_limit=peak, kinds=()).fits


def test_where_the_allocator_cannot_hold_a_plan_lower_ones_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator needs as much again as is live above 110 MiB: the plan of 130 MiB is not the answer."""

    def needed(points: Sequence[FitPoint], limit: Limit, options: Options) -> tuple[FitPoint, Held]:
        best, low = limit.best(points), min(points, key=lambda one: one.peak_bytes)
        return (low, Held(0)) if low.peak_bytes <= 110 * MIB else (best, Held(0, best.peak_bytes - 110 * MIB))

    monkeypatch.setattr(planner, "held_best", needed)
    found = fit(saved(), PRICES, memory_limit=145 * MIB, kinds=("recompute",))
    assert (found.fits, found.best.peak_bytes <= 110 * MIB) == (True, True)
