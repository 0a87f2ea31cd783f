"""How ranks agree through a key-value store: the steps of one rank, as a generator. No torch, no clock.

The generator yields one :class:`Step` at a time and is sent its result, so that tests run every interleaving of
several ranks (``tests/distributed/test_interleavings.py``); :mod:`~overlap_sched.distributed.agreement` runs it on
the real store. What the ranks share, under one prefix:

    <key>/<round>/<rank>     digest of that rank; written once
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

**Rounds.** A key names a graph without its sizes; a rank that compiles it again with another digest (other
shapes, other options) finds its own first digest and goes on to the next round. The same digest again meets the
recorded verdict. So a decision never changes while the job runs.

**A fault on this rank** (of the store, or of our own code) is thrown into the generator at the step where it happens.
It then does not guess: it writes the verdict "original" where there is none yet, and follows what is recorded. Only if
the store fails for that too does a rank go on without knowing; and since "agreed" is only written where every rank
stands, that leaves no doubt unless it failed while it stood (:class:`InDoubtError`).

**All stand waiting, but at different graphs.** Then nobody would come before the limit. The last one who comes to
stand sees it and decides "original" for all those graphs at once.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.verdict import Verdict, absent, elsewhere, gone, judge


class Step(NamedTuple):
    """One thing to do: ``call`` a store's method with ``args``, or ``pause``.

    ``pause`` waits a little; it is sent ``True`` when the time limit has passed. Its argument says whether the limit
    is the short one.
    """

    call: str
    args: tuple[Any, ...] = ()


class NotShownError(Exception):
    """The store failed before the others could count on this rank: they keep the original order as it does."""


class InDoubtError(Exception):
    """The store failed while this rank stood waiting: the others may have agreed without its knowing."""


Steps = Generator[Step, Any, Verdict]


def agreement_steps(mine: Digest, rank: int, ranks: Sequence[int], limit_s: float, short_limit_s: float) -> Steps:
    """The steps of one rank; returns the verdict that all ranks have.

    Args:
        mine: This rank's digest.
        rank: This rank.
        ranks: All who must agree, this one included; the same on each of them.
        limit_s: Time limit, for the message only (seconds).
        short_limit_s: The one that holds after a rank was found missing.
    """
    stands = False
    try:
        round_key = yield from _post(mine, rank)
        if not (yield _has_verdict(round_key)):
            short = yield from _someone_was_absent(rank)
            stands = True
            yield Step("set", (f"at/{rank}", round_key))
            if (yield Step("add", ("waiting", 1))) >= len(ranks):
                yield from _decide_if_all_wait(ranks)
            while not (yield _has_verdict(round_key)):
                if (yield Step("pause", (short,))):
                    yield from _decide_at_the_limit(mine, round_key, ranks, short_limit_s if short else limit_s)
            yield Step("set", (f"at/{rank}", ""))
            yield Step("add", ("waiting", -1))
        return Verdict.from_json((yield Step("get", (f"{round_key}/verdict",))))
    except Exception as fault:  # torch's stores raise several types, none of them public
        try:
            return (yield from _after_a_fault(mine, rank, stands, fault))
        except Exception as again:
            raise (InDoubtError if stands else NotShownError)(f"{type(again).__name__}: {again}") from fault


def _after_a_fault(mine: Digest, rank: int, stands: bool, fault: Exception) -> Generator[Step, Any, Verdict]:
    """What is recorded, or else "original"; a count of waiting ranks that stays too high does no harm."""
    round_key = yield from _post(mine, rank)
    verdict = Verdict(
        agreed=False, reason=f"rank {rank} failed while the ranks were agreeing: {type(fault).__name__}: {fault}"
    )
    recorded = yield Step("compare_set", (f"{round_key}/verdict", "", verdict.to_json()))
    if stands:
        yield Step("set", (f"at/{rank}", ""))
    return Verdict.from_json(recorded)


def _post(mine: Digest, rank: int) -> Generator[Step, Any, str]:
    """Write my digest into the first round that has no other one of mine; returns ``<key>/<round>``."""
    number, text = 0, mine.to_json()
    while (yield Step("compare_set", (f"{mine.key}/{number}/{rank}", "", text))) != text:
        number += 1
    return f"{mine.key}/{number}"


def _someone_was_absent(rank: int) -> Generator[Step, Any, bool]:
    """Whether another rank is known to be missing; I am here, so I take myself off that list."""
    if not (yield Step("check", (["absent"],))):
        return False
    listed = [int(r) for r in (yield Step("get", ("absent",))).split(",") if r]
    others = [r for r in listed if r != rank]
    if len(others) < len(listed):
        yield Step("set", ("absent", ",".join(map(str, others))))
    return bool(others)


def _decide_if_all_wait(ranks: Sequence[int]) -> Generator[Step, Any, None]:
    """If every rank stands at a graph without verdict: decide for all these graphs, from what was posted there."""
    round_keys: dict[int, str] = {}
    for r in ranks:
        round_keys[r] = yield from _stands_at(r)
    different = list(dict.fromkeys(round_keys.values()))
    for round_key in different:  # who stands where all is decided is about to go on, and will come to stand again
        if not round_key or (yield _has_verdict(round_key)):
            return
    shown = [f"{round_keys[r]}/{r}" for r in ranks]
    if not (yield Step("check", (shown,))):  # a store waits, and long, for a key that is not there
        return
    digests = {}
    for r, key in zip(ranks, shown, strict=True):
        digests[r] = Digest.from_json((yield Step("get", (key,))))
    verdict = judge(digests)
    if len(different) > 1 and verdict.agreed:  # the same digest in different rounds: they have not met before
        verdict = elsewhere(digests)
    for round_key in different:
        yield Step("compare_set", (f"{round_key}/verdict", "", verdict.to_json()))


def _decide_at_the_limit(
    mine: Digest, round_key: str, ranks: Sequence[int], limit_s: float
) -> Generator[Step, Any, None]:
    digests, missing = {}, []
    for r in ranks:
        if (yield Step("check", ([f"{round_key}/{r}"],))):
            digests[r] = Digest.from_json((yield Step("get", (f"{round_key}/{r}",))))
        else:
            missing.append(r)
    verdict = absent(missing, mine.name, limit_s) if missing else judge(digests)
    if verdict.agreed:
        away = []
        for r in ranks:
            if (yield from _stands_at(r)) != round_key:
                away.append(r)
        if away:  # they have shown a digest, and may never learn what comes of it
            verdict = gone(away, mine.name, limit_s)
    written = yield Step("compare_set", (f"{round_key}/verdict", "", verdict.to_json()))
    if missing and written == verdict.to_json():
        yield Step("set", ("absent", ",".join(map(str, missing))))


def _stands_at(rank: int) -> Generator[Step, Any, str]:
    """The ``<key>/<round>`` at which a rank stands waiting; empty if it does not."""
    known = yield Step("check", ([f"at/{rank}"],))
    round_key: str = (yield Step("get", (f"at/{rank}",))) if known else ""
    return round_key


def _has_verdict(round_key: str) -> Step:
    return Step("check", ([f"{round_key}/verdict"],))
