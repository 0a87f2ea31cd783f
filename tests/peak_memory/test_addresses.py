"""Addresses: nothing overlaps, the search is exact on small problems, hard ones fit their capacity."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import OptionsError
from overlap_sched.peak_memory.addresses import (
    RULES,
    Boxes,
    OutOfWorkError,
    Search,
    address_violation,
    boxes_of,
    fit_below,
    place,
    plan_addresses,
    rule_of,
)
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges
from tests.support.examples import at_night, examples
from tests.support.graphs import problems
from tests.support.layers import CAPACITY, LETTERS, hard_problem
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


def smallest_of_all(ranges: list[LiveRange]) -> int:
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
    assert str(address_violation(EXAMPLE, order, {**good, 3: 1}, 512)).startswith(
        "storage 3 of mm lies at 1, which is not"
    )
    del good[3]
    assert address_violation(EXAMPLE, order, good) == "storage 3 of mm has no offset"


@given(BOXES, st.integers(0, 2))
def test_placements_hold_and_effort_finds_the_smallest_arena(ranges: list[LiveRange], effort: int) -> None:
    offsets, _ = place(ranges, effort)
    assert overlapping(ranges, offsets.tolist()) == []
    arena = max(at + span.bytes for at, span in zip(offsets, ranges, strict=True))
    assert arena == smallest_of_all(ranges) if effort else arena >= smallest_of_all(ranges)


@pytest.mark.parametrize("align", [0, -512, 1.5, True])
def test_alignment_that_cannot_be(align: object) -> None:
    with pytest.raises(OptionsError, match=f"align_bytes is {align!r}; "):
        plan_addresses(EXAMPLE, EXAMPLE.original_order, align)  # type: ignore[arg-type]


FEW_BOXES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=6).map(
    lives_of
)


@examples(60)
@given(FEW_BOXES, st.sampled_from(RULES), st.sampled_from((0.0, 1.0)))
def test_one_search_is_exact(ranges: list[LiveRange], rule: tuple[str, str], weight: float) -> None:
    smallest = smallest_of_all(ranges)
    boxes = boxes_of(ranges)
    search = Search(smallest, 10**6, np.zeros(boxes.sections), rule_of(*rule, weight))  # type: ignore[arg-type]
    found = search.offsets(boxes)
    assert found is not None
    assert overlapping(ranges, list(found)) == []
    assert (found + boxes.bytes).max() <= smallest
    none, left = fit_below(boxes, smallest - 1, 10**6)
    assert (none, left > 0) == (None, True)


def test_sections_are_the_moments_at_which_most_is_live() -> None:
    boxes = boxes_of(lives_of([(2, 0, 3), (1, 1, 0), (3, 2, 0), (4, 3, 4), (5, 6, 1)]))
    assert boxes.sections == 4
    assert (list(boxes.begin), list(boxes.end)) == ([0, 0, 1, 2, 3], [3, 1, 2, 4, 4])
    assert list(boxes.live_bytes) == [3, 5, 6, 9]
    assert list(boxes.crossings) == [1, 1, 1, 0]
    assert boxes.together[0].tolist() == [False, True, True, True, False]


def test_boxes_cover_their_sections() -> None:
    boxes = Boxes(np.array([1, 1]), np.array([0, 1]), np.array([1, 3]), 3)
    assert boxes.covers.tolist() == [[True, False, False], [False, True, True]]


def test_work_ends_a_search_and_is_counted() -> None:
    boxes = boxes_of(lives_of([(2, 0, 3), (1, 0, 0), (3, 1, 0), (1, 1, 4), (2, 2, 3), (3, 5, 1), (1, 4, 2)]))
    search = Search(8, 2, np.zeros(boxes.sections), rule_of("area", "sections", 1.0))
    with pytest.raises(OutOfWorkError):
        search.offsets(boxes)
    assert search.work_left == 0
    assert fit_below(boxes, 8, 2) == (None, 0)
    found, left = zip(*(fit_below(boxes, 8, 1000) for _ in range(2)), strict=True)
    assert 0 < left[0] == left[1] < 998
    assert found[0].tolist() == found[1].tolist()


HARD = Path(__file__).parents[1] / "data" / "minimalloc"


LONG = "DJ"
"""The two that take longest, up to a minute each; the study scripts/studies/memory_zoo has all."""
RATHER_LONG = "BEIK"
"""Of the others, those that are left to nights."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "letter", [at_night(one) if one in RATHER_LONG else one for one in sorted(set(LETTERS) - set(LONG))]
)
def test_hard_problems_fit_into_their_capacity(letter: str) -> None:
    problem = hard_problem(HARD, letter)
    order = problem.original_order
    plan = plan_addresses(problem, order)
    assert address_violation(problem, order, plan.offsets, 512) is None
    assert plan.arena_bytes <= CAPACITY
