"""How ranks agree through a key-value store: the steps of one rank, as a generator. No torch, no clock.

The generator yields one :class:`StoreCall` at a time and is sent its result, so that tests run every interleaving of
several ranks (``tests/distributed/test_interleavings.py``); :mod:`~overlap_sched.distributed.agreement` runs it on
the real store. What the ranks share, under one prefix:

    <key>/<round>/<rank>     which call of that rank, and its digest; written once
    <key>/<round>/verdict    the decision; written once, by ``compare_set``: whoever decides first decides for all
    at/<rank>                the <key>/<round> at which that rank stands waiting, empty if it does not
    waiting                  how many ranks stand waiting
    absent                   ranks that the last time limit found missing

    post my digest -> is there a verdict? follow it
                      else stand waiting; the last one who comes to stand decides from what all have posted
                      else look for a verdict, again and again; at the time limit decide from what is there
                   -> follow the verdict, mine or not

**Why all ranks take the same decision.** Nobody acts on what it has seen, only on what is in ``verdict``, and
``compare_set`` lets one value in, for good. A rank that comes just at the limit races for that one key and loses or
wins, with everybody. A verdict "agreed" is only written by one who has read equal digests of *all* ranks.

**Rounds.** A rank's first compilation of a graph is round 0 of its key, its second is round 1. So ranks that compile a
graph again meet again, and one that fails only then is heard. Nothing that was not agreed on is agreed on later.

    rank 0   D in round 0   D in round 1                    D in round 2
    rank 1   D in round 0   runs what it has (or is late)   D in round 1: decided without it -> round 2

**One compiles again, the others do not.** They run what they have. So at the limit, if all who came show a digest that
has a verdict from an earlier round, that verdict stands (``as_before``); whoever was missing passes over such a round.

**A fault on this rank** (of the store, or of our own code) is thrown into the generator at the step where it happens.
It then does not guess: it writes the verdict "original" where there is none yet (or waits once more, where its digest
has a verdict from an earlier round), and follows what is recorded. Only if that fails too does a rank go on without
knowing; and since "agreed" is only written where every rank stands, or has been agreed on before, that leaves no doubt
unless it failed while it stood, or at a graph that it asks about again (:class:`StoreFailedError`).

**All stand waiting, but at different graphs.** Then nobody would come before the limit. The last one who comes to
stand sees it and decides, at once: as before where that is known; if it is nowhere, "original" for all those graphs.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from overlap_sched.distributed.digest import Digest, Verdict, absent, elsewhere, judge

ABSENT_SHARE = 0.1
"""Part of the limit that is waited while a rank found missing has not come back: the full limit is paid once."""


class StoreCall(NamedTuple):
    """One thing to do: ``call`` a store's method with ``args``, or ``pause``.

    ``pause`` waits a little; it is sent ``True`` when the time limit has passed. Its first argument says whether the
    limit is the short one; a second one, what is waited for: a verdict, or these keys.
    """

    call: str
    args: tuple[Any, ...] = ()


class StoreFailedError(Exception):
    """The store failed for good.

    Attributes:
        verdict: What this rank does.
        in_doubt: The others could count on this rank: they may have agreed without its knowing. Else they keep the
            original order as it does.
    """

    def __init__(self, fault: Exception, before: Verdict | None, in_doubt: bool) -> None:
        unknown = ", so this rank does not know what the others decided" if in_doubt else ""
        reason = (
            f"the store of the process group failed ({type(fault).__name__}: {fault}){unknown}. "
            "Is the process that serves the store (rank 0, or torchrun) still running?"
        )
        super().__init__(reason)
        # the others go by it too, unless one of them differs this time
        self.verdict = before if before is not None and before.agreed else Verdict(False, reason)
        self.in_doubt = in_doubt


Steps = Generator[StoreCall, Any, Verdict]


@dataclass
class _Call:
    """One rank's way through one agreement; the first five are as for :func:`agreement_steps`.

    Attributes:
        text: What it posts: like no other call of any rank.
        stands: Whether others have been told that it waits.
        again: Whether this rank has asked about this graph before.
        before: What was decided on its digest in an earlier round; ``None``: nothing.
    """

    mine: Digest
    text: str
    rank: int
    ranks: Sequence[int]
    limit_s: float
    stands: bool = False
    again: bool = False
    before: Verdict | None = None


def agreement_steps(mine: Digest, name: str, rank: int, ranks: Sequence[int], limit_s: float) -> Steps:
    """The steps of one rank; returns the verdict that all ranks have, whatever fails on the way.

    Args:
        mine: This rank's digest.
        name: Of this call: without a space, another one each time that this rank asks.
        rank: This rank.
        ranks: All who must agree, this one included; the same on each of them.
        limit_s: Time limit, for the message only (seconds). A part of it holds where somebody may well not come: after
            a rank was found missing, and where the digest has been decided on before.
    """
    call = _Call(mine, f"{name} {mine.to_json()}", rank, ranks, limit_s)
    try:
        return (yield from _settled(call))
    except Exception as fault:  # torch's stores raise several types, none of them public
        try:
            return (yield from _settled(call, fault))
        except Exception as again:
            raise StoreFailedError(again, call.before, in_doubt=call.stands or call.again) from fault


def wait_for(keys: Sequence[str]) -> Generator[StoreCall, Any, list[str] | None]:
    """Return what is under each of some keys, once all are there; ``None``: not within the limit."""
    while not (yield StoreCall("check", (list(keys),))):
        if (yield StoreCall("pause", (False, list(keys)))):
            return None
    found = []
    for key in keys:
        found.append((yield StoreCall("get", (key,))))
    return found


def _settled(call: _Call, fault: Exception | None = None) -> Steps:
    """Post in the first round in which this rank has not; the verdict there, or the next one not made without it."""
    number, passed_over = 0, False
    while True:
        round_key = f"{call.mine.key}/{number}"
        if (yield StoreCall("compare_set", (f"{round_key}/{call.rank}", "", call.text))) == call.text:
            call.before = yield from _before(call.mine, number)
            if fault is None or call.before is not None:
                verdict = yield from _waited_for(call, round_key, passed_over)
            else:  # what is recorded, or else "original"; a count of waiting ranks that stays too high does no harm
                reason = f"rank {call.rank} failed while the ranks were agreeing: {type(fault).__name__}: {fault}"
                verdict = yield from _record(round_key, Verdict(False, reason, shown=(call.mine.identity,)))
                if call.stands:
                    yield StoreCall("set", (f"at/{call.rank}", ""))
            if not (verdict.as_before and call.rank in verdict.missing):
                return verdict
            passed_over = True
        number, call.again = number + 1, True


def _waited_for(call: _Call, round_key: str, passed_over: bool) -> Steps:
    """The verdict of a round, once there is one."""
    if (verdict := (yield from _verdict(round_key))) is not None:
        return verdict
    short = (yield from _someone_was_absent(call.rank)) or passed_over or call.before is not None
    call.stands = True
    yield StoreCall("set", (f"at/{call.rank}", round_key))
    if (yield StoreCall("add", ("waiting", 1))) >= len(call.ranks):
        yield from _decide_if_all_wait(call.ranks)
    while (verdict := (yield from _verdict(round_key))) is None:
        if (yield StoreCall("pause", (short,))):
            yield from _decide_at_the_limit(call, round_key, call.limit_s * ABSENT_SHARE if short else call.limit_s)
    yield StoreCall("set", (f"at/{call.rank}", ""))
    yield StoreCall("add", ("waiting", -1))
    return verdict


def _before(mine: Digest, number: int) -> Generator[StoreCall, Any, Verdict | None]:
    """Return the last decision on a digest before a round of its key, whoever had posted it; ``None``: nothing."""
    for earlier in reversed(range(number)):
        verdict = yield from _verdict(f"{mine.key}/{earlier}")
        if verdict is not None and mine.identity in verdict.shown:
            return verdict
    return None


def _someone_was_absent(rank: int) -> Generator[StoreCall, Any, bool]:
    """Tell whether another rank is known to be missing; this rank is here, and takes itself off that list."""
    listed = (yield from _read("absent")).split(",")
    others = [r for r in listed if r not in ("", str(rank))]
    if str(rank) in listed:
        yield StoreCall("set", ("absent", ",".join(others)))
    return bool(others)


def _decide_if_all_wait(ranks: Sequence[int]) -> Generator[StoreCall, Any, None]:
    """If every rank stands at a graph without verdict: decide, from what was posted there."""
    round_keys: dict[int, str] = {}
    for r in ranks:
        round_keys[r] = yield from _read(f"at/{r}")
    different = list(dict.fromkeys(round_keys.values()))
    for round_key in different:  # who stands where all is decided is about to go on, and will come to stand again
        if not round_key or (yield from _verdict(round_key)) is not None:
            return
    digests = {}
    for r in ranks:
        digests[r] = yield from _digest(f"{round_keys[r]}/{r}")
    if None in digests.values():
        return
    verdicts = {}
    for round_key in different:
        here = {r: digests[r] for r in ranks if round_keys[r] == round_key}
        if (before := (yield from _as_before(here, ranks, round_key))) is not None:
            verdicts[round_key] = before
    if not verdicts:
        verdict = judge(digests)
        if len(different) > 1 and verdict.agreed:  # in different rounds: they have not met before
            verdict = elsewhere(digests)
        verdicts = dict.fromkeys(different, verdict)
    for round_key, verdict in verdicts.items():
        yield from _record(round_key, verdict)


def _as_before(
    digests: Mapping[int, Digest], ranks: Sequence[int], round_key: str
) -> Generator[StoreCall, Any, Verdict | None]:
    """Return the earlier decision on the one digest that ranks show in a round; ``None``: nothing, or they differ."""
    first, *others = digests.values()
    if first.failure or any(other.identity != first.identity for other in others):
        return None
    before = yield from _before(first, int(round_key.rsplit("/", 1)[1]))
    missing = tuple(r for r in ranks if r not in digests)
    return None if before is None else replace(before, missing=missing, as_before=True)


def _decide_at_the_limit(call: _Call, round_key: str, waited_s: float) -> Generator[StoreCall, Any, None]:
    posted = {}
    for r in call.ranks:
        posted[r] = yield from _digest(f"{round_key}/{r}")
    digests = {r: digest for r, digest in posted.items() if digest is not None}
    missing = [r for r in call.ranks if r not in digests]
    verdict = yield from _as_before(digests, call.ranks, round_key)
    if verdict is None:
        verdict, away = judge(digests), list(missing)
        for r in () if missing or not verdict.agreed else call.ranks:
            at = yield from _read(f"at/{r}")
            away += [r] * (at != round_key)  # it has shown a digest, and may never learn what comes of it
        if away:
            verdict = absent(away, digests, call.mine.name, waited_s, call.limit_s)
    written = yield from _record(round_key, verdict)
    if missing and written == verdict:
        yield StoreCall("set", ("absent", ",".join(map(str, missing))))


def _read(key: str) -> Generator[StoreCall, Any, str]:
    """Read a key; ``""``: nothing is there. A store waits, and long, for a key that is not there."""
    text: str = (yield StoreCall("get", (key,))) if (yield StoreCall("check", ([key],))) else ""
    return text


def _digest(key: str) -> Generator[StoreCall, Any, Any]:
    """Return what a rank has posted; ``None``: nothing yet."""
    text = yield from _read(key)
    return Digest.from_json(text.split(" ", 1)[1]) if text else None


def _verdict(round_key: str) -> Generator[StoreCall, Any, Verdict | None]:
    """The recorded one; ``None``: none yet."""
    text = yield from _read(f"{round_key}/verdict")
    return Verdict.from_json(text) if text else None


def _record(round_key: str, verdict: Verdict) -> Steps:
    """Record a verdict where there is none; returns what is recorded."""
    return Verdict.from_json((yield StoreCall("compare_set", (f"{round_key}/verdict", "", verdict.to_json()))))
