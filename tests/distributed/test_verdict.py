"""The messages when ranks differ, word by word."""

from dataclasses import replace

import pytest

from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.verdict import Verdict, absent, judge, ranks_text

A = Digest(problem="p", options="o", costs="c", order="r", key="k", name="backward")


def test_equal_digests_agree_whatever_the_names() -> None:
    assert judge({0: A, 1: replace(A, name="backward_1")}) == Verdict(agreed=True)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            replace(A, problem="q", costs="d", order="s", name="forward"),
            "the ranks differ in problem: ranks 0-1, 3 against rank 2 (rank 0 compiles 'backward', rank 2 compiles "
            "'forward'). Each rank must compile the same graphs, in one order and with the same shapes.",
        ),
        (
            replace(A, options="q", order="s"),
            "the ranks differ in options: ranks 0-1, 3 against rank 2. "
            "Give overlap_sched the same options on every rank.",
        ),
        (
            replace(A, costs="d", order="s"),
            "the ranks differ in costs: ranks 0-1, 3 against rank 2. "
            "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
        ),
        (
            replace(A, order="s"),
            "the ranks differ in order: ranks 0-1, 3 against rank 2. The scheduler failed on a rank (see its "
            "warnings), or the ranks run different versions of overlap_sched.",
        ),
        (
            replace(A, options="q", costs="d"),
            "the ranks differ in options: ranks 0-1, 3 against rank 2; costs: ranks 0-1, 3 against rank 2. "
            "Give overlap_sched the same options on every rank. "
            "Let all ranks take measured times from rank 0 (overlap_sched.distributed.broadcast_costs).",
        ),
    ],
    ids=["problem", "options", "costs", "order", "options and costs"],
)
def test_who_differs_in_what(other: Digest, reason: str) -> None:
    verdict = judge({0: A, 1: A, 2: other, 3: A})
    assert not verdict.agreed
    assert verdict.reason == reason
    assert all(sides == ((0, 1, 3), (2,)) for sides in verdict.differs.values())
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_who_is_missing() -> None:
    verdict = absent([2], "backward", 300.0)
    assert verdict.missing == (2,)
    assert verdict.reason == (
        "rank 2 did not publish an order for graph 'backward' within 300 s. Such a rank died, compiles other "
        "graphs, is slower than that, or took the graph from a cache: see docs/agreement.md."
    )
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert str(absent([1, 2], "x", 30.0).reason).startswith("ranks 1-2 did not publish an order")


def test_thousands_of_ranks_stay_readable() -> None:
    assert ranks_text(range(4096)) == "ranks 0-4095"
    assert ranks_text(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    verdict = judge({rank: replace(A, problem=str(rank)) for rank in range(1000)})
    assert len(str(verdict.reason)) < 600
    assert "rank 7 and 992 more kinds" in str(verdict.reason)
