"""Ranks that differ choose one launch sequence, or keep theirs, whatever the timing and whatever fails."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from overlap_sched.distributed import Digest, Verdict
from overlap_sched.distributed.agreement import Membership
from overlap_sched.distributed.digest import LAUNCHES_KEPT, judge
from overlap_sched.distributed.negotiation import (
    MOST_PROPOSERS,
    LaunchChoice,
    chosen_digest,
    negotiate,
    negotiation_steps,
    proposers_of,
)
from overlap_sched.distributed.protocol import agreement_steps
from overlap_sched.errors import AgreementError
from overlap_sched.scheduler.restrictions import Proposal
from tests.distributed.test_interleavings import A, B, C
from tests.support.agreement_ranks import Clock, MemoryStore
from tests.support.interleavings import Checker

KEPT_US = 10.0
DIGESTS = (A, B, A)


def proposal_of(rank: int) -> Proposal:
    """Launches in an order of their own."""
    return Proposal(("collective a", "collective b"), (0, 1), (rank % 2, 1 - rank % 2))


def choosing(mine: Digest, name: str, rank: int, ranks: Sequence[int], limit_s: float) -> Any:
    """What comes behind the verdict that all differ, as :mod:`overlap_sched.inductor.decision` does it.

    A rank that has not got this verdict keeps its launches, and does not come: that is all the same as one that dies.
    """
    verdict = judge({r: DIGESTS[r] for r in ranks})
    choice: LaunchChoice | None
    try:
        choice = yield from negotiation_steps(
            verdict, rank, ranks, proposal_of(rank), KEPT_US, lambda shown: {r: 9.0 - r for r in shown}
        )
        digest = chosen_digest(mine, verdict, choice, choice.proposal.sequence if choice.proposal else ())
    except Exception as error:
        choice, digest = None, chosen_digest(mine, verdict, None, failure=str(error))
    final = yield from agreement_steps(digest, name, rank, ranks, limit_s)
    return Verdict(final.agreed, f"as rank {choice.proposer}" if final.agreed and choice is not None else "kept")


def reasons(count: int, **how: Any) -> set[str | None]:
    """What ranks launch at every end; in each all that live launch one sequence."""
    found = [
        {verdicts[0].reason for verdicts in end.verdicts if verdicts}
        for end in Checker([[digest] for digest in DIGESTS[:count]], agree=choosing, **how).ends()
    ]
    assert found
    assert all(len(launched) <= 1 for launched in found)
    return set().union(*found)


@pytest.mark.private
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_launch_as_one_of_them_where_nothing_goes_wrong(ranks: int) -> None:
    assert reasons(ranks, limit_passes=False) == {"as rank 1"}


EITHER = {"kept", "as rank 1"}


@pytest.mark.private
def test_two_ranks_of_which_one_may_die_whatever_the_timing() -> None:
    assert reasons(2, deaths=1) == EITHER


@pytest.mark.slow
@pytest.mark.nightly
def test_a_step_that_fails_on_a_rank() -> None:
    assert reasons(2, faults=1) == EITHER


@pytest.mark.slow
@pytest.mark.nightly
def test_three_ranks_whatever_the_timing() -> None:
    assert reasons(3) == EITHER


def verdict_of(*digests: Digest) -> Verdict:
    return judge(dict(enumerate(digests)))


def test_who_proposes() -> None:
    assert proposers_of(verdict_of(A, B, B, A, B)) == (0, 1)
    assert proposers_of(verdict_of(C, A, A, B, B, B)) == (0, 1, 3)
    many = [replace(A, operators=name, key=name) for name in "abcdef"]
    assert len(proposers_of(verdict_of(*many))) == MOST_PROPOSERS
    assert proposers_of(verdict_of(A, A)) == ()


@pytest.mark.parametrize(
    "other",
    [
        Digest(failure="KeyError: 'mm'", key="A", launches="l"),
        replace(A, options='{"effort": 2}'),  # somebody can mend that
        replace(A, costs="other"),
        replace(B, launches="m"),
        replace(B, order=f"{LAUNCHES_KEPT}abc"),  # code from a cache, which does not plan
    ],
)
def test_where_there_is_nothing_to_choose(other: Digest) -> None:
    verdict = verdict_of(A, other)
    assert not verdict.agreed
    assert proposers_of(verdict) == ()


def chosen(kept_us: Sequence[float], planned: Sequence[Mapping[int, float]]) -> list[LaunchChoice]:
    """What each of several ranks, in threads, chooses; steps by proposer."""
    store, verdict = MemoryStore(), verdict_of(A, *[B] * (len(kept_us) - 1))
    found: dict[int, LaunchChoice] = {}

    def run(rank: int) -> None:
        here = Membership(store, rank, len(kept_us))
        found[rank] = negotiate(verdict, proposal_of(rank), kept_us[rank], lambda _: planned[rank], here, 10.0)

    threads = [Thread(target=run, args=(rank,)) for rank in range(len(kept_us))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(kept_us))]


def test_the_slowest_rank_decides() -> None:
    first, second = LaunchChoice(0, proposal_of(0)), LaunchChoice(1, proposal_of(1))
    assert chosen([10, 10, 10], [{0: 5, 1: 7}, {0: 9, 1: 7}, {0: 5, 1: 8}]) == [second] * 3
    assert chosen([10, 10], [{0: 5, 1: 7}, {0: 6, 1: 7}]) == [first] * 2
    assert chosen([10, 10], [{0: 5, 1: 7}, {0: 10, 1: 10}]) == [LaunchChoice()] * 2  # nothing gained
    assert chosen([10, 10], [{0: math.inf, 1: 7}, {0: 5, 1: math.inf}]) == [LaunchChoice()] * 2
    assert chosen([math.inf, 10], [{0: math.inf, 1: math.inf}, {0: 5, 1: 5}]) == [LaunchChoice()] * 2


def test_a_rank_that_does_not_come() -> None:
    clock, here = Clock(), Membership(MemoryStore(), 0, 2)
    with pytest.raises(AgreementError, match="not all ranks have shown their proposal in time"):
        negotiate(verdict_of(A, B), proposal_of(0), 1.0, lambda _: {}, here, 5.0, clock)
    assert clock.now_s == pytest.approx(5.0)


def test_what_is_shown_at_the_end() -> None:
    verdict, choice = verdict_of(A, B), LaunchChoice(1, proposal_of(1))
    shown_by = [chosen_digest(mine, verdict, choice, (1, 0)) for mine in (A, B)]
    assert shown_by[0].identity == shown_by[1].identity
    assert judge(dict(enumerate(shown_by))).agreed
    otherwise = chosen_digest(B, verdict, choice, (0, 1))
    failed = chosen_digest(B, verdict, None, failure="KeyError: 'mm'")
    for other in (otherwise, failed, chosen_digest(B, verdict, LaunchChoice())):
        assert not judge({0: shown_by[0], 1: other}).agreed
        assert proposers_of(judge({0: shown_by[0], 1: other})) == ()
