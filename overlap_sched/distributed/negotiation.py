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
import json
import math
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from overlap_sched.distributed.agreement import TIMEOUT_S, Clock, Membership, run_steps, short_hash
from overlap_sched.distributed.digest import Digest, Verdict
from overlap_sched.distributed.protocol import StoreCall, wait_for
from overlap_sched.errors import AgreementError
from overlap_sched.scheduler.restrictions import Proposal

MOST_PROPOSERS = 3
"""Kinds of ranks of which one proposes, the most frequent first: every rank plans with each of their orders."""

Planned = Callable[[Mapping[int, Proposal]], Mapping[int, float]]
"""From proposals, by rank, to the step in microseconds that this rank would have with each; infinite: it cannot."""


class LaunchChoice(NamedTuple):
    """What all ranks have chosen.

    Attributes:
        proposer: The rank whose launch sequence it is; ``None``: all keep their launches.
        proposal: Its order.
    """

    proposer: int | None = None
    proposal: Proposal | None = None


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
    shown = Digest(key=f"{_key(verdict)}/choice", launches=mine.launches, name=mine.name, failure=failure)
    if choice is None:
        return shown
    return replace(shown, options=mine.options, order=f"launches of rank {choice.proposer}: {list(sequence)}")


def negotiate(
    verdict: Verdict,
    mine: Proposal,
    kept_us: float,
    planned: Planned,
    membership: Membership,
    timeout_s: float = TIMEOUT_S,
    clock: Clock = time,
) -> LaunchChoice:
    """Choose a launch sequence with all other ranks that have the same verdict.

    Args:
        verdict: That says that the ranks differ and launch alike.
        mine: The order that this rank would run alone.
        kept_us: The step of this rank where all keep their launches (microseconds).
        planned: Plans with the proposals of others.
        membership: This rank among those that must agree.
        timeout_s: How long to wait for the others, each time (seconds).
        clock: Tells the time and sleeps.

    Raises:
        AgreementError: Not all ranks came within the limit.
        Exception: What the store raises, or planning.
    """
    steps = negotiation_steps(verdict, membership.rank, membership.members, mine, kept_us, planned)
    choice: LaunchChoice = run_steps(steps, membership, timeout_s, clock)
    return choice


def negotiation_steps(
    verdict: Verdict, rank: int, ranks: Sequence[int], mine: Proposal, kept_us: float, planned: Planned
) -> Generator[StoreCall, Any, LaunchChoice]:
    """The steps of one rank, as :func:`negotiate` runs them on the store; a fault is for the caller to see."""
    key, proposers = _key(verdict), proposers_of(verdict)
    if rank in proposers:
        text = base64.b85encode(zlib.compress(msgspec.json.encode(mine))).decode()
        yield StoreCall("compare_set", (f"{key}/proposal/{rank}", "", text))
    shown = yield from _all_of(f"{key}/proposal", proposers)
    decoded = [msgspec.json.decode(zlib.decompress(base64.b85decode(text)), type=Proposal) for text in shown]
    proposals = dict(zip(proposers, decoded, strict=True))
    steps = [kept_us, *map(planned(proposals).__getitem__, proposers)]
    yield StoreCall("compare_set", (f"{key}/steps/{rank}", "", json.dumps(steps)))
    every = yield from _all_of(f"{key}/steps", ranks)
    slowest = [max(column) for column in zip(*map(json.loads, every), strict=True)]
    best = min(range(len(slowest)), key=slowest.__getitem__)  # of equals the first: launches kept
    if best == 0 or math.isinf(slowest[best]):
        return LaunchChoice()
    return LaunchChoice(proposers[best - 1], proposals[proposers[best - 1]])


def _all_of(key: str, ranks: Sequence[int]) -> Generator[StoreCall, Any, list[str]]:
    """Return what each of some ranks has shown under a key, once all have.

    Raises:
        AgreementError: That took longer than the limit.
    """
    found = yield from wait_for([f"{key}/{r}" for r in ranks])
    if found is None:
        raise AgreementError(f"not all ranks have shown their {key.rsplit('/', 1)[1]} in time")
    return found


def _key(verdict: Verdict) -> str:
    """Ranks with one verdict meet under it."""
    return f"negotiation/{short_hash(' '.join(sorted(verdict.shown)))}"
