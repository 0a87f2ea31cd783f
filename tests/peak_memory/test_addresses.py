"""Addresses: nothing overlaps, nothing is lost; small cases against every possible packing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import OptionsError
from overlap_sched.peak_memory.addresses import Boxes, address_violation, place, plan_addresses
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges
from tests.support.graphs import problems
from tests.support.oracle import peak_by_definition, random_order

MIB = 2**20


def lives_of(spans: list[tuple[int, int, int]]) -> list[LiveRange]:
    return [LiveRange(s, size, first, first + length) for s, (size, first, length) in enumerate(spans)]


BOXES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=5).map(
    lives_of
)


def together(a: LiveRange, b: LiveRange) -> bool:
    return a.first <= b.last and b.first <= a.last


def overlapping(ranges: list[LiveRange], offsets: list[int]) -> list[tuple[int, int]]:
    """Pairs that share a byte at a time, pair by pair."""
    return [
        (i, k)
        for (i, a), (k, b) in itertools.combinations(enumerate(ranges), 2)
        if together(a, b) and offsets[i] < offsets[k] + b.bytes and offsets[k] < offsets[i] + a.bytes
    ]


def smallest_arena(ranges: list[LiveRange]) -> int:
    """Of all orders of placement, each box at the lowest offset above all it lives with: one of them is the best."""
    best = sum(span.bytes for span in ranges)
    for order in itertools.permutations(range(len(ranges))):
        ends: dict[int, int] = {}
        for i in order:
            ends[i] = ranges[i].bytes + max((ends[k] for k in ends if together(ranges[i], ranges[k])), default=0)
        best = min(best, max(ends.values()))
    return best


@given(problems(max_steps=20), st.integers(0, 1000))
def test_live_ranges_add_up_to_the_profile(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    ranges = LiveRanges(problem).of(order)
    profile = [sum(span.bytes for span in ranges if span.first <= at <= span.last) for at in range(len(order))]
    assert profile == peak_by_definition(problem, order)


@given(problems(max_steps=20), st.integers(0, 1000), st.sampled_from((1, 8, 512)), st.integers(0, 2))
def test_no_two_storages_overlap(problem: Problem, seed: int, align: int, effort: int) -> None:
    order = random_order(problem, seed)
    plan = plan_addresses(problem, order, align, effort)
    ranges = LiveRanges(problem).of(order)
    assert overlapping(ranges, [plan.offsets[span.storage] for span in ranges]) == []
    assert all(at >= 0 and at % align == 0 for at in plan.offsets.values())
    assert plan.arena_bytes >= max((plan.offsets[span.storage] + span.bytes for span in ranges), default=0)
    assert plan.arena_bytes >= plan.peak_bytes >= max(peak_by_definition(problem, order))
    assert 0 <= plan.fragmentation < 1
    if align == 1:
        assert plan.peak_bytes == max(peak_by_definition(problem, order))


@given(problems(max_steps=20), st.integers(0, 1000), st.data())
def test_the_checker_finds_what_is_wrong(problem: Problem, seed: int, data: st.DataObject) -> None:
    order = random_order(problem, seed)
    ranges = [span for span in LiveRanges(problem).of(order) if span.bytes]
    if not ranges:
        return
    offsets = dict(plan_addresses(problem, order, 1).offsets)
    assert address_violation(problem, order, offsets) is None
    moved = data.draw(st.sampled_from(ranges))
    offsets[moved.storage] = data.draw(st.integers(0, 12))
    wrong = overlapping(ranges, [offsets[span.storage] for span in ranges])
    assert (address_violation(problem, order, offsets) is not None) == bool(wrong)


def test_the_checker_in_words() -> None:
    order = EXAMPLE.original_order
    good = dict(plan_addresses(EXAMPLE, order).offsets)
    assert address_violation(EXAMPLE, order, good, 512) is None
    assert address_violation(EXAMPLE, order, {**good, 3: good[2]}) == "storages 2 and 3 overlap while mm runs"
    assert (
        address_violation(EXAMPLE, order, {**good, 3: 1}, 512)
        == "storage 3 of mm lies at 1, which is not a multiple of 512"
    )
    del good[3]
    assert address_violation(EXAMPLE, order, good) == "storage 3 of mm has no offset"


@given(BOXES, st.integers(0, 2))
def test_placements_hold_and_effort_helps(ranges: list[LiveRange], effort: int) -> None:
    offsets, _ = place(ranges, 12, effort)
    assert overlapping(ranges, [offsets[span.storage] for span in ranges]) == []
    easy, _ = place(ranges, 12, 0)
    assert max(offsets[span.storage] + span.bytes for span in ranges) <= max(
        easy[span.storage] + span.bytes for span in ranges
    )


def test_climbing_and_search_help_where_no_order_does() -> None:
    ranges = lives_of([(2, 0, 3), (1, 0, 0), (3, 1, 0), (1, 1, 4), (2, 2, 3), (3, 5, 1), (1, 4, 2), (2, 6, 0)])
    peak = smallest_arena(ranges[:7])
    found, _ = place(ranges[:7], 10, 2)
    assert max(found[span.storage] + span.bytes for span in ranges[:7]) == peak


def test_conflicts_are_counted_in_bytes() -> None:
    boxes = Boxes(lives_of([(5, 0, 1), (2, 1, 2), (4, 3, 0), (1, 9, 0)]))
    assert list(boxes._conflicts()) == [7, 11, 6, 1]


def test_example_has_no_fragmentation() -> None:
    plan = plan_addresses(EXAMPLE, EXAMPLE.original_order)
    assert (plan.arena_bytes, plan.peak_bytes, plan.fragmentation) == (21 * MIB, 21 * MIB, 0.0)


@pytest.mark.parametrize("align", [0, -512, 1.5, True])
def test_alignment_that_cannot_be(align: object) -> None:
    with pytest.raises(OptionsError) as caught:
        plan_addresses(EXAMPLE, EXAMPLE.original_order, align)  # type: ignore[arg-type]
    assert str(caught.value) == f"align_bytes is {align!r}; it is a whole number of bytes, 1 or more."
