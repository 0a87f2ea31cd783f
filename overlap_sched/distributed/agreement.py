"""All ranks decide alike, through the process group's store, with a time limit and no collective.

NCCL hangs when ranks launch collectives in different orders. Before a new order is used, every rank shows the digest
of it; only if all are the same do all use it. The protocol, and why it cannot come out differently on two ranks, is in
:mod:`overlap_sched.distributed.protocol`; what is guaranteed and what is not in ``docs/agreement.md``.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any

from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.membership import PREFIX, Membership, Store, members_of, membership_of
from overlap_sched.distributed.protocol import InDoubtError, NotShownError, StoreCall, agreement_steps
from overlap_sched.distributed.sequences import Entry, Launch, SequencesInForce, log_steps
from overlap_sched.distributed.verdict import Verdict
from overlap_sched.errors import AgreementError

TIMEOUT_S = 300.0
"""How long to wait for the slowest rank (seconds).

Ranks reach the same graph minutes apart where one compiles from cold caches. A rank that has its graph may already
stand in a collective, which torch ends after 10 minutes on NCCL (``default_pg_nccl_timeout``): half of that leaves
time to compile the rest. Where the process group has another timeout, take half of that one."""

ABSENT_SHARE = 0.1
"""Part of the limit that is waited while a rank found missing has not come back: the full limit is paid once."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1
"""Time between two looks: twice as long each time. A thousand ranks make ten thousand small requests a second at most;
a rank learns what it waits for at most a tenth of a second late."""

_TRIES = 3
"""How often the log of launch sequences is asked where the store fails."""

_SERVED = "Is the process that serves the store (rank 0, or torchrun) still running?"


@dataclass(frozen=True)
class Agreement:
    """What all ranks decided.

    Attributes:
        agreed: Use the new order. Else keep the original one, or one that launches all collectives in the same order
            where ``verdict.launches_alike`` says that all ranks launch alike, or one with each wait behind the launches
            that it followed, too.
        verdict: The recorded decision, the same on every rank: the reason, who differs in what, who is missing.
        in_doubt: The store failed for good while this rank waited, so it does not know what the others decided. It
            does what all had agreed on before, for the same digest, or else keeps its launches. If the others
            do not, the job hangs at the first collective whose place differs, until torch's own time limit.
        waited_s: Time spent here (seconds; for people).
    """

    agreed: bool
    verdict: Verdict
    in_doubt: bool = False
    waited_s: float = 0.0

    @property
    def reason(self) -> str | None:
        """Why the original order is kept; ``None`` if agreed."""
        return self.verdict.reason


def agree(
    mine: Digest,
    timeout_s: float = TIMEOUT_S,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    ranks: Sequence[int] | None = None,
    strict: bool = False,
    rest: Sequence[Digest] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Agreement:
    """Compare this rank's digest with that of all others; every rank gets the same decision.

    Call it once per graph that has collectives, on every rank, whether or not scheduling succeeded there, as the last
    thing before the order is used: whatever fails after it fails on one rank alone. It returns at the latest
    ``timeout_s`` after it was called plus the time of a few store operations. Alone (no process group, one rank,
    torch's ``fake`` backend) a rank agrees with itself.

    Args:
        mine: See :func:`~overlap_sched.distributed.digest.digest_of`.
        timeout_s: How long to wait for the others (seconds).
        store: What the ranks share; a ``torch.distributed.Store``. With it ``rank`` and ``world_size``; default: those
            of the default process group.
        rank: This rank.
        world_size: How many ranks there are.
        ranks: Who must agree: all whose collectives may meet those of this graph, the same list on each of them.
            Default: every rank.
        strict: Raise where the original order would be kept, and not only the order of launches.
        rest: What this rank can take only together with it: all then agree on both, or the verdict is ``again``, see
            :mod:`~overlap_sched.distributed.protocol`.
        clock: Seconds; tests give their own.
        sleep: Waits some seconds; tests give their own.

    Raises:
        AgreementError: With ``strict``: the ranks differ, one did not come, or the store failed.
        OptionsError: The arguments do not fit each other.
    """
    began = clock()
    try:
        membership = membership_of(store, rank, world_size)
        if membership is None:
            return Agreement(True, Verdict(agreed=True))
    except AgreementError as error:
        return _checked(Agreement(False, Verdict(False, str(error))), mine, strict)
    members = members_of(membership, ranks)
    name = uuid.uuid4().hex
    limits = limits_of(timeout_s)
    steps = agreement_steps(mine, name, membership.rank, members, *limits, rest)
    try:
        verdict: Verdict = run_steps(steps, membership.store, prefix_of(membership, members), limits, clock, sleep)
        result = Agreement(verdict.agreed, verdict, waited_s=clock() - began)
        if verdict.agreed:  # nothing that could fail comes after this
            return result
    except NotShownError as error:
        reason = f"the store of the process group failed ({error}). {_SERVED}"
        result = Agreement(False, Verdict(False, reason), waited_s=clock() - began)
    except InDoubtError as error:
        reason = (
            f"the store of the process group failed ({error}), so this rank does not know what the others decided. "
            f"{_SERVED}"
        )
        before = error.before  # the others go by it too, unless one of them differs this time
        verdict = before if before is not None and before.agreed else Verdict(False, reason)
        result = Agreement(verdict.agreed, verdict, in_doubt=True, waited_s=clock() - began)
    return _checked(result, mine, strict)


class Backoff:
    """Pauses between looks at what another rank is to do, counted from when it is made: often at first, seldom later.

    The clock (seconds) and the sleep are given.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._clock, self._sleep = clock, sleep
        self._began_s = clock()
        self._pause_s = FIRST_PAUSE_S

    def pause(self, limit_s: float) -> bool:
        """Sleep a while, but not beyond the limit; ``False``, at once, if that is past."""
        left_s = self._began_s + limit_s - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True


def limits_of(timeout_s: float) -> tuple[float, float]:
    """Return the limit, and the short one, in seconds."""
    return timeout_s, timeout_s * ABSENT_SHARE


def run_steps(
    steps: Generator[StoreCall, Any, Any],
    store: Store,
    prefix: str,
    limits: tuple[float, float],
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Any:
    """Drive one rank's steps on a real store and a real clock; what fails is thrown into them. Returns what they do."""
    backoff = Backoff(clock, sleep)
    result: Any = None
    fault: Exception | None = None
    try:
        while True:
            step = steps.send(result) if fault is None else steps.throw(fault)
            fault = None
            try:
                if step.call == "pause":
                    result = not backoff.pause(limits[step.args[0]])  # whether the limit is past
                else:
                    result = perform(step, store, prefix)
            except Exception as error:  # torch's stores raise several types, none of them public
                fault = error
    except StopIteration as done:
        return done.value


def perform(step: StoreCall, store: Store, prefix: str) -> Any:
    """One step on a store, its keys behind a prefix; bytes come back as text."""
    key, *rest = step.args
    key = [prefix + k for k in key] if isinstance(key, list) else prefix + key
    result = getattr(store, step.call)(key, *rest)
    return result.decode() if isinstance(result, bytes) else result


_logs: list[tuple[Store, str, SequencesInForce]] = []
"""What this process has read of each log of launch sequences."""
_logs_lock = Lock()


def find_sequence(
    launches: Sequence[Launch],
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    ranks: Sequence[int] | None = None,
) -> Entry | None:
    """Return the launch sequence that is in force for the launches of a graph; ``None``: none yet, or a rank alone.

    Never waits for another rank. Where the store fails, what this rank has read before counts.

    Args:
        launches: Those of the graph, in their original order.
        store: What the ranks share; this and the others are as for :func:`agree`.
        rank: This rank.
        world_size: How many ranks there are.
        ranks: Who must agree.
    """
    return _ask_log(tuple(launches), None, membership_of(store, rank, world_size), ranks)


def settle_sequence(
    entry: Entry,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    ranks: Sequence[int] | None = None,
) -> Entry | None:
    """Put a launch sequence in force; return the one that is, which may be another.

    ``None``: there can be none. Whatever the graph launches, ranks that cut the program into other graphs launch it
    otherwise, so it must not run. The arguments besides ``entry`` are those of :func:`find_sequence`.
    """
    membership = membership_of(store, rank, world_size)
    return entry if membership is None else _ask_log(entry.launches, entry, membership, ranks)


def is_part_of_others(entry: Entry, ranks: Sequence[int] | None = None) -> bool:
    """Tell whether ranks that cut the program otherwise may launch what is in force for an entry in another sequence.

    Never asks the store: by what :func:`find_sequence` has read.
    """
    membership = membership_of(None, None, None)
    with _logs_lock:
        return membership is not None and _log_of(membership, ranks).launch_elsewhere(entry)


def _log_of(membership: Membership, ranks: Sequence[int] | None) -> SequencesInForce:
    store, prefix = membership.store, prefix_of(membership, members_of(membership, ranks))
    log = next((known for s, p, known in _logs if s is store and p == prefix), None)
    if log is None:
        log = SequencesInForce()
        _logs.append((store, prefix, log))
    return log


def _ask_log(
    launches: tuple[Launch, ...], entry: Entry | None, membership: Membership | None, ranks: Sequence[int] | None
) -> Entry | None:
    if membership is None:
        return None
    store, prefix = membership.store, prefix_of(membership, members_of(membership, ranks))
    with _logs_lock:
        log = _log_of(membership, ranks)
        for _ in range(_TRIES):
            try:
                found: Entry | None = run_steps(
                    log_steps(log, launches, entry), store, prefix, (0.0, 0.0), time.monotonic, time.sleep
                )
                return found
            except Exception:  # torch's stores raise several types, none of them public
                continue
        return log.find(launches) if entry is None else deepcopy(log).decide(entry)


def prefix_of(membership: Membership, members: tuple[int, ...]) -> str:
    """Other members, other keys: a rank may agree with different others about different graphs."""
    if len(members) == membership.world_size:
        return f"{PREFIX}agreement/all/"
    return f"{PREFIX}agreement/{hashlib.sha256(repr(members).encode()).hexdigest()[:16]}/"


def _checked(result: Agreement, mine: Digest, strict: bool) -> Agreement:
    if strict and not result.agreed and not (result.verdict.launches_alike or result.verdict.again):
        raise AgreementError(f"the ranks do not agree on an order for graph {mine.name!r}: {result.reason}")
    return result
