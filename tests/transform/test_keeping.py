"""Gathers kept for their next use, gathered again, and splits, chosen with the order: by hand, and at random."""

from dataclasses import replace

import pytest
from hypothesis import given

from overlap_sched import Kind, Node, Options, Problem
from overlap_sched.judge.validate import memory_profile, violation
from overlap_sched.report.words.rewrites import record_text
from overlap_sched.transform.apply import apply
from overlap_sched.transform.gathers import (
    GatherGap,
    admitted,
    casts_of,
    chained,
    gathered_twice,
    to_gather_again,
    to_keep,
)
from overlap_sched.transform.plan import most_gain_us, plan, records, wanted_of
from overlap_sched.transform.rewrites import Bucket, Keep, Recompute, Regather, Rewrite
from overlap_sched.transform.search import order_as_it_was
from tests.support.examples import examples
from tests.support.oracle import peak_by_definition
from tests.support.sharded import PRICES, check_promises, whole_step, whole_steps

KEEP = Options(rewrites=("keep",))
ALL = Options(rewrites=("bucket", "keep", "regather", "stream"))
ROOM = whole_step([16] * 4, 4.0, temporary_bytes=4000)
"""Eight gathers of 64 bytes, 26 us each; compute takes 36 with casts. Its peak is at the end."""


def peak(problem: Problem) -> int:
    return max(peak_by_definition(problem, list(problem.original_order)))


def launches(problem: Problem) -> list[str]:
    return [problem.nodes[v].name for v in problem.collectives]


@given(whole_steps())
@examples(40)
def test_what_is_admitted_fits_as_the_judge_counts(problem: Problem) -> None:
    order, budget = problem.original_order, peak(problem)
    for gap in to_keep(problem, order, gathered_twice(problem, None)):
        after = apply(problem, [gap.rewrite], PRICES)
        fits = max(memory_profile(after, after.original_order)) <= budget
        assert bool(admitted(problem, order, [gap], budget)) is fits
    kept = admitted(problem, order, to_keep(problem, order, gathered_twice(problem, None)), budget)
    after = apply(problem, chained(kept), PRICES)
    assert max(memory_profile(after, after.original_order)) <= budget


def test_where_there_is_room_nothing_is_gathered_twice() -> None:
    found = plan(ROOM, PRICES, KEEP)
    assert found.without.scheduled.step_us >= 8 * 26
    assert set(found.rewrites) == {Keep(f"gather{k}f", f"gather{k}b") for k in range(4)}
    assert launches(found.schedule.problem) == [f"gather{k}f" for k in range(4)]
    assert not [node.name for node in found.schedule.problem.nodes if node.name.endswith("b")]  # casts are gone, too
    assert found.schedule.scheduled.step_us < 4 * 26 + 36
    check_promises(ROOM, found)
    assert [record.stream_us for record in found.records] == [26.0] * 4
    text = "gather3f kept instead of gather3b: 26.0 us less on its stream, 64 B more held"
    assert text in map(record_text, found.records)


def test_without_room_only_as_much_is_kept_as_fits() -> None:
    """The last layer's weight is used twice in a row; of the others, which are held at once, two more fit."""
    tight = whole_step([16] * 4, 4.0)
    last = Keep("gather3f", "gather3b")
    assert plan(tight, PRICES, KEEP).rewrites == (last,)
    found = plan(tight, PRICES, replace(KEEP, headroom=2 * 64))
    assert last in found.rewrites
    assert 2 <= len(found.rewrites) <= 3
    check_promises(tight, found)


def test_buckets_are_of_what_is_still_gathered() -> None:
    found = plan(ROOM, PRICES, Options(rewrites=("bucket", "keep"), headroom="100%"))
    gone = {one.again for one in found.rewrites if isinstance(one, Keep)}
    merged = {name for one in found.rewrites if isinstance(one, Bucket) for name in one.members}
    assert gone
    assert merged
    assert not gone & merged
    check_promises(ROOM, found)


def test_three_of_one_are_kept_in_a_row() -> None:
    gaps = [
        GatherGap(Keep("a", "b"), 3, 5, 8, 1.0),
        GatherGap(Keep("b", "c"), 7, 9, 8, 1.0),
        GatherGap(Keep("d", "e"), 1, 2, 8, 1.0),
    ]
    assert chained(gaps) == [Keep("d", "e"), Keep("a", "b"), Keep("a", "c")]
    assert chained(gaps[1:]) == [Keep("d", "e"), Keep("b", "c")]


def test_only_gathers_of_the_same_are_pairs() -> None:
    def names(problem: Problem, alike: dict[str, str] | None = None) -> list[list[str]]:
        return [[problem.nodes[v].name for v in ids] for ids in gathered_twice(problem, alike)]

    two = whole_step([16, 16])
    assert names(two) == [["gather0f", "gather0b"], ["gather1f", "gather1b"]]
    assert names(two, dict.fromkeys(("gather0f", "gather0b", "gather1f"), "bfloat16")) == [["gather0f", "gather0b"]]
    assert names(two, {"gather0f": "bfloat16", "gather0b": "float16"}) == []
    other = [node._replace(op="aten.exp.default") if node.name == "cast0b" else node for node in two.nodes]
    assert names(replace(two, nodes=tuple(other))) == [["gather1f", "gather1b"]]
    (x,) = (v for v, node in enumerate(two.nodes) if node.name == "x")
    later = [node._replace(deps=(*node.deps, x)) if node.name == "cast0b" else node for node in two.nodes]
    assert names(replace(two, nodes=tuple(later))) == [["gather1f", "gather1b"]]  # what it waits for may write


@pytest.mark.slow
def test_what_a_graph_refuses_is_not_tried() -> None:
    def refuses(rewrite: Rewrite) -> str:
        return "" if rewrite == Keep("gather1f", "gather1b") else "no"

    assert plan(ROOM, PRICES, KEEP, refuses=refuses).rewrites == (Keep("gather1f", "gather1b"),)
    assert plan(ROOM, PRICES, KEEP, refuses=lambda rewrite: "no").trials == ()


def test_what_can_be_gained_is_bounded_before_anything_is_scheduled() -> None:
    assert most_gain_us(ROOM, PRICES, None, wanted_of(KEEP, ())) == pytest.approx(4 * 26.0)
    once = whole_step([16] * 4, again=False)
    assert most_gain_us(once, PRICES, None, wanted_of(KEEP, ())) == 0.0
    assert wanted_of(Options(rewrites=("regather",)), ()).beyond_bound


def test_what_is_held_is_gathered_again_behind_the_peak() -> None:
    held = whole_step([16] * 3, 100.0, acts_bytes=64, again=False)
    gaps = to_gather_again(held, held.original_order, None)
    assert [gap.rewrite for gap in gaps] == [Regather(f"gather{k}f", (f"backward{k}",)) for k in (0, 1)]
    casts = casts_of(held, "gather0f")
    assert casts == ("cast0f",)
    rewrites = (gaps[0].rewrite, Recompute(casts, (gaps[0].rewrite.name,)))
    after = apply(held, rewrites, PRICES)
    before_bytes, after_bytes = peak(held), peak(after)
    assert after_bytes <= before_bytes - 64
    assert "again_cast0f" in [node.name for node in after.nodes]
    record = records(held, after, rewrites)[0]
    assert (record.stream_us, record.held_bytes) == (-26.0, -64)
    assert record_text(record) == "gather0f gathered again: 26.0 us more on its stream, 64 B not kept"


def test_where_a_gather_comes_again_behind_the_longest_gap() -> None:
    """Of a weight that `more` reads, too: from the wait, a view, or only behind `backward1`, as no copy could be."""
    held = whole_step([16] * 3, 100.0, acts_bytes=64, again=False)
    at = {node.name: v for v, node in enumerate(held.nodes)}
    (full, *_), last = held.nodes[at["gather1f"]].alloc, len(held.nodes) - 1
    view = Node("view", Kind.COMPUTE, (at["wait1f"],), (), (full,), op="aten.view.default")

    def gaps(*deps: int, late: bool = True) -> list[GatherGap[Regather]]:
        more = Node("more", Kind.COMPUTE, deps, (), (full,), 1.0, "aten.add_.Tensor")
        output = held.nodes[last]._replace(deps=(*held.nodes[last].deps, last + 1))
        order = list(range(last + 3))
        if not late:
            order.insert(at["backward2"], order.pop(last + 1))
        return to_gather_again(replace(held, nodes=(*held.nodes[:last], view, more, output)), order, None)

    (first,) = gaps(at["backward1"])
    assert first.rewrite == Regather("gather0f", ("backward0",))
    assert (first.begin, first.end) == (at["forward0"] + 1, at["backward0"])
    assert [gap.rewrite for gap in gaps(at["wait1f"], at["backward1"])][1:] == [
        Regather("gather1f", ("backward1", "more"))
    ]
    assert gaps(at["backward1"], last)[1].rewrite == Regather("gather1f", ("backward1", "more"), ("view",))
    assert gaps(at["wait1f"], late=False)[2].rewrite == Regather("gather2f", ("backward2",))  # one node between


@given(whole_steps())
@examples(40)
def test_an_order_of_what_was_rewritten_comes_back(problem: Problem) -> None:
    keeps = chained(to_keep(problem, problem.original_order, gathered_twice(problem, None)))
    after = apply(problem, keeps, PRICES)
    order = order_as_it_was(problem, after, after.original_order)
    assert violation(problem, order) is None
    again = apply(problem, keeps, PRICES, order=order)
    assert again.names(again.original_order) == after.names(after.original_order)


def test_buckets_are_tried_with_what_is_kept_and_without() -> None:
    tried = [{type(one) for one in trial.rewrites} for trial in plan(ROOM, PRICES, ALL).trials]
    assert {Keep, Bucket} in tried
    assert {Bucket} in tried
