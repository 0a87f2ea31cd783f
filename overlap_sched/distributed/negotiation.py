"""Ranks that differ, but launch alike, choose one new launch sequence for all: that of one of them.

::

    proposers, one of each kind of rank, show the order that they would run alone        <key>/proposal/<rank>
    every rank plans with the launches of each, and shows how long its step would be     <key>/steps/<rank>
    all choose what makes the step of the slowest rank the shortest, or to keep their launches
    all agree on the choice, as on any order                                             protocol.py

**Nothing is decided here.** A rank that fails, or has not heard of all others within its limit, shows in the agreement
at the end that it has nothing, and all keep their launches. What is chosen is used only where all ranks have shown the
same choice there, and each of them has its own order ready by then.

What has been shown under a key stays. A rank that compiles its graph again alone finds all of it, and chooses the same.
"""

import base64
import hashlib
import json
import math
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overlap_sched.distributed.agreement import (
    TIMEOUT_S,
    Membership,
    limits_of,
    members_of,
    prefix_of,
    run_steps,
)
from overlap_sched.distributed.digest import Digest, Verdict
from overlap_sched.distributed.protocol import StoreCall
from overlap_sched.errors import AgreementError
from overlap_sched.scheduler.restrictions import Proposal

MOST_PROPOSERS = 3
"""Kinds of ranks of which one proposes, the most frequent first: every rank plans with each of their orders."""

Planned = Callable[[Mapping[int, Proposal]], Mapping[int, float]]
"""From proposals, by rank, to the step in microseconds that this rank would have with each; infinite: it cannot."""


@dataclass(frozen=True)
class LaunchChoice:
    """What all ranks have chosen.

    Attributes:
        proposer: The rank whose launch sequence it is; ``None``: all keep their launches.
        proposal: Its order.
    """

    proposer: int | None = None
    proposal: Proposal | None = None

    @property
    def text(self) -> str:
        """The same for equal choices."""
        return "launches kept" if self.proposal is None else f"launches of rank {self.proposer}"


def proposers_of(verdict: Verdict) -> tuple[int, ...]:
    """Who proposes, where a verdict leaves room for it: the lowest rank of each kind."""
    kinds = [sides for sides in verdict.differs.values() if sides] if verdict.negotiable else []
    return tuple(sorted(side[0] for side in kinds[0][:MOST_PROPOSERS])) if kinds else ()


def chosen_digest(
    mine: Digest, verdict: Verdict, choice: LaunchChoice | None, sequence: Sequence[int] = (), failure: str = ""
) -> Digest:
    """Return what a rank shows that has made a choice.

    Args:
        mine: What it has shown before.
        verdict: What came of that.
        choice: The choice; ``None``: it has made none.
        sequence: The launches that it would run, each by its place in the original sequence.
        failure: Why it has made none.
    """
    key = f"{_key(verdict)}/choice"
    if choice is None:
        return Digest.of_failure(failure, key, mine.launches, mine.name)
    return Digest("", "", mine.options, "", f"{choice.text}: {list(sequence)}", key, mine.launches, name=mine.name)


def negotiate(
    verdict: Verdict,
    mine: Proposal,
    kept_us: float,
    planned: Planned,
    membership: Membership | None,
    timeout_s: float = TIMEOUT_S,
    *,
    ranks: Sequence[int] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> LaunchChoice:
    """Choose a launch sequence with all other ranks that have the same verdict.

    Args:
        verdict: That says that the ranks differ and launch alike.
        mine: The order that this rank would run alone.
        kept_us: The step of this rank where all keep their launches (microseconds).
        planned: Plans with the proposals of others.
        membership: This rank among the others; ``None``: it is alone.
        timeout_s: How long to wait for the others, each time (seconds).
        ranks: Who must agree.
        clock: Seconds; tests give their own.
        sleep: Waits some seconds; tests give their own.

    Raises:
        AgreementError: Not all ranks came within the limit.
        Exception: What the store raises, or planning.
    """
    if membership is None:
        return LaunchChoice()
    members = members_of(membership, ranks)
    steps = negotiation_steps(verdict, membership.rank, members, mine, kept_us, planned)
    prefix, limits = prefix_of(membership, members), limits_of(timeout_s)
    choice: LaunchChoice = run_steps(steps, membership.store, prefix, limits, clock, sleep)
    return choice


def negotiation_steps(
    verdict: Verdict, rank: int, ranks: Sequence[int], mine: Proposal, kept_us: float, planned: Planned
) -> Generator[StoreCall, Any, LaunchChoice]:
    """The steps of one rank, as :func:`negotiate` runs them on the store; a fault is for the caller to see."""
    key, proposers = _key(verdict), proposers_of(verdict)
    if rank in proposers:
        yield StoreCall("compare_set", (f"{key}/proposal/{rank}", "", _text(mine)))
    shown = yield from _all_of(f"{key}/proposal", proposers)
    proposals = {r: _proposal(text) for r, text in shown.items()}
    steps = [kept_us, *map(planned(proposals).__getitem__, proposers)]
    yield StoreCall("compare_set", (f"{key}/steps/{rank}", "", json.dumps(steps)))
    every = yield from _all_of(f"{key}/steps", ranks)
    slowest = [max(column) for column in zip(*map(json.loads, every.values()), strict=True)]
    best = min(range(len(slowest)), key=slowest.__getitem__)  # of equals the first: launches kept
    if best == 0 or math.isinf(slowest[best]):
        return LaunchChoice()
    return LaunchChoice(proposers[best - 1], proposals[proposers[best - 1]])


def _all_of(key: str, ranks: Sequence[int]) -> Generator[StoreCall, Any, dict[int, str]]:
    """Return what each of some ranks has shown under a key, once all have.

    Raises:
        AgreementError: That took longer than the limit.
    """
    keys = [f"{key}/{r}" for r in ranks]
    while not (yield StoreCall("check", (keys,))):
        if (yield StoreCall("pause", (False, keys))):
            raise AgreementError(f"not all ranks have shown their {key.rsplit('/', 1)[1]} in time")
    found = {}
    for r, one in zip(ranks, keys, strict=True):
        found[r] = yield StoreCall("get", (one,))
    return found


def _key(verdict: Verdict) -> str:
    """Ranks with one verdict meet under it."""
    return f"negotiation/{hashlib.sha256(' '.join(sorted(verdict.shown)).encode()).hexdigest()[:16]}"


def _text(proposal: Proposal) -> str:
    return base64.b85encode(zlib.compress(json.dumps(asdict(proposal)).encode())).decode()


def _proposal(text: str) -> Proposal:
    read = json.loads(zlib.decompress(base64.b85decode(text)))
    return Proposal(tuple(read["calls"]), tuple(read["launches"]), tuple(read["order"]))
