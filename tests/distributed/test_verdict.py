"""The messages when ranks differ, word by word."""

from dataclasses import replace

import pytest

from overlap_sched.distributed.digest import Digest, Verdict, absent, as_before, judge, options_text, ranks_text
from overlap_sched.options import Options

A = Digest(operators="p", sizes="s", options="o", costs="c", order="r", key="k", launches="l", name="backward", nodes=7)


def test_equal_digests_agree_whatever_the_names() -> None:
    assert judge({0: A, 1: replace(A, name="backward_1")}) == Verdict(agreed=True, shown=(A.identity,))


def test_what_is_alike_within_a_part_that_differs() -> None:
    """Not every difference in sizes is one of tensors, nor every other graph one of other operators."""
    known = replace(A, calls="x", storages="y")
    for other, words in (
        (replace(known, sizes="t"), "constants or offsets (no tensor has another size): rank 0 against rank 1; launch"),
        (replace(known, sizes="t", storages="z"), "tensor sizes: rank 0 against rank 1; launch"),
        (
            replace(known, operators="q"),
            "dependencies between equal operators, or process groups: rank 0 against rank 1; launch",
        ),
        (replace(known, operators="q", calls="w"), "operators: rank 0 against rank 1; launch"),
    ):
        verdict = judge({0: known, 1: other})
        assert verdict.reason == f"the ranks differ in {words} order kept."
        assert verdict.launches_alike


SIDES = "ranks 0-1, 3 against rank 2"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            replace(A, operators="q", sizes="t", costs="d", order="s", name="forward", nodes=8),
            f"the ranks differ in operators: {SIDES} (rank 0 compiles 'backward' of 7 nodes, rank 2 compiles 'forward' "
            "of 8 nodes); launch order kept.",
        ),
        (
            replace(A, sizes="t", costs="d", order="s"),
            f"the ranks differ in tensor sizes: {SIDES}; launch order kept.",
        ),
        (
            replace(A, options="q", order="s"),
            f"the ranks differ in options: {SIDES}; launch order kept. "
            "Give overlap_sched the same options on every rank.",
        ),
        (
            replace(A, costs="d", order="s"),
            f"the ranks differ in costs: {SIDES}; launch order kept. "
            "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
        ),
        (
            replace(A, order="s"),
            f"the ranks differ in order: {SIDES}; launch order kept. The scheduler failed on a rank (see its "
            "warnings), or the ranks run different versions of overlap_sched.",
        ),
        (
            replace(A, options="q", costs="d"),
            f"the ranks differ in options: {SIDES}; costs: {SIDES}; launch order kept. "
            "Give overlap_sched the same options on every rank. "
            "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
        ),
    ],
    ids=["operators", "sizes", "options", "costs", "order", "options and costs"],
)
def test_who_differs_in_what(other: Digest, reason: str) -> None:
    verdict = judge({0: A, 1: A, 2: other, 3: A})
    assert not verdict.agreed
    assert verdict.launches_alike
    assert verdict.reason == reason
    assert all(sides == ((0, 1, 3), (2,)) for sides in verdict.differs.values())
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_options_that_differ_are_named_with_the_value_of_each_rank() -> None:
    default = replace(A, options=options_text(Options(effort=9)))
    other = replace(A, options=options_text(Options(headroom="1GiB", rewrites=(), effort=9), max_slowdown=0.1))
    assert judge({0: default, 1: default, 2: other, 3: default}).reason == (
        'the ranks differ in options: headroom is 0 on ranks 0-1, 3 and "1GiB" on rank 2, max_slowdown is null on '
        'ranks 0-1, 3 and 0.1 on rank 2, rewrites is ["coalesce_gathers", "keep"] on ranks 0-1, 3 and [] on rank 2; '
        "launch order kept. Give overlap_sched the same options on every rank."
    )


@pytest.mark.parametrize("launches", ["other", ""], ids=["others", "not known"])
def test_ranks_that_launch_differently_keep_their_own_launches_and_waits(launches: str) -> None:
    verdict = judge({0: A, 1: replace(A, sizes="t", launches=launches)})
    assert not verdict.launches_alike
    assert verdict.reason == (
        "the ranks differ in tensor sizes: rank 0 against rank 1. Their launch sequences differ too (collectives, "
        "groups, or graphs compiled in another order), so each rank keeps its own, and no wait passes a launch that it "
        "followed."
    )


def test_launches_that_no_rank_knows_are_not_alike() -> None:
    assert not judge({0: replace(A, launches=""), 1: replace(A, sizes="t", launches="")}).launches_alike


def test_a_rank_that_failed_is_named_and_the_others_keep_their_launches() -> None:
    failed = Digest.of_failure("KeyError: 'mm'", "k", A.launches, "backward")
    verdict = judge({0: A, 1: failed, 2: A})
    assert (verdict.agreed, verdict.launches_alike, verdict.differs) == (False, True, {})
    assert verdict.reason == "rank 1 could not schedule this graph (KeyError: 'mm'); launch order kept."
    assert not judge({0: failed, 1: failed}).agreed
    both = judge({0: A, 1: replace(A, sizes="t"), 2: failed})
    assert both.reason == (
        "the ranks differ in tensor sizes: rank 0 against rank 1; rank 2 could not schedule this graph "
        "(KeyError: 'mm'); launch order kept."
    )


def test_what_somebody_can_mend() -> None:
    assert judge({0: A, 1: replace(A, options="p")}).to_mend
    assert not judge({0: A, 1: replace(A, operators="p")}).to_mend
    assert not judge({0: A, 1: A}).to_mend


def test_who_is_missing() -> None:
    verdict = absent([2], {0: A, 1: A}, "backward", 300.0, 300.0)
    assert verdict.missing == (2,)
    assert verdict.reason == (
        "rank 2 did not publish an order for graph 'backward' within 300 s. Such a rank died, compiles other "
        "graphs, is slower than that, or has compiled the graph already: see docs/agreement.md."
    )
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert str(absent([1, 2], {0: A}, "x", 30.0, 300.0).reason).startswith(
        "ranks 1-2 did not publish an order for graph 'x' within 30 s (instead of 300 s, as not all ranks came the "
        "last time). Such"
    )


def test_thousands_of_ranks_stay_readable() -> None:
    assert ranks_text(range(4096)) == "ranks 0-4095"
    assert ranks_text(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    verdict = judge({rank: replace(A, operators=str(rank)) for rank in range(1000)})
    assert len(str(verdict.reason)) < 1000
    assert "rank 7 and 992 more kinds" in str(verdict.reason)


def test_what_is_for_people_is_no_part_of_an_identity() -> None:
    assert replace(A, name="forward 0/1", nodes=8).identity == A.identity
    for part in ("operators", "sizes", "options", "costs", "order", "key", "launches", "failure"):
        assert replace(A, **{part: "other"}).identity != A.identity


def test_an_earlier_verdict_stands_without_those_who_did_not_come() -> None:
    for earlier in (judge({0: A, 1: A}), judge({0: A, 1: replace(A, options="q")})):
        verdict = Verdict.from_json(as_before(earlier, [1]).to_json())
        assert (verdict.missing, verdict.as_before) == ((1,), True)
        assert replace(verdict, missing=(), as_before=False) == earlier
