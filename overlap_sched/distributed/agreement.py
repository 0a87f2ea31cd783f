"""All ranks decide alike, through the process group's store, with a time limit and no collective.

NCCL hangs when ranks launch collectives in different orders. Before a new order is used, every rank shows the digest
of it; only if all are the same do all use it. The protocol, and why it cannot come out differently on two ranks, is in
:mod:`overlap_sched.distributed.protocol`; what is guaranteed and what is not in ``docs/agreement.md``.

Torch is touched only in :func:`membership_of`, and there its one private name that is needed (``_get_default_store``:
the store of ``init_process_group``; there is no public way to it).
"""

import hashlib
import json
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from overlap_sched.distributed.digest import Digest, Verdict
from overlap_sched.distributed.protocol import InDoubtError, NotShownError, StoreCall, agreement_steps
from overlap_sched.distributed.sequences import Entry, Launch, SequencesInForce, log_steps
from overlap_sched.errors import AgreementError, OptionsError, OverlapSchedWarning

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


PREFIX = "overlap_sched/"
"""In front of every key that we write."""


class Store(Protocol):
    """What is used of ``torch.distributed.Store``; none of it blocks.

    ``compare_set`` returns what is stored afterwards; with an empty expected value it writes only where nothing is.
    """

    def set(self, key: str, value: str) -> object: ...  # noqa: D102
    def get(self, key: str) -> bytes: ...  # noqa: D102
    def check(self, keys: list[str]) -> bool: ...  # noqa: D102
    def add(self, key: str, amount: int) -> int: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...  # noqa: D102


@dataclass(frozen=True)
class Membership:
    """A rank among those that share a store."""

    store: Store
    rank: int
    world_size: int


def membership_of(store: Store | None, rank: int | None, world_size: int | None) -> Membership | None:
    """The membership given, or that in torch's default process group; ``None``: there is nobody to agree with.

    That is so without a process group, with one rank, and with torch's ``fake`` backend (one process for all ranks).

    Raises:
        OptionsError: Only some of the three are given.
        AgreementError: There are several ranks, but torch does not give access to their store.
    """
    if store is not None and rank is not None and world_size is not None:
        return Membership(store, rank, world_size) if world_size > 1 else None
    if store is not None or rank is not None or world_size is not None:
        raise OptionsError(
            f"only some of store, rank ({rank}) and world_size ({world_size}) are given. "
            "Give all three, or none to use the default process group."
        )
    c10d = _initialized()
    if c10d is None or c10d.get_world_size() == 1 or c10d.get_backend() == "fake":
        return None
    try:
        default: Any = c10d._get_default_store()
    except Exception as error:
        raise AgreementError(
            f"cannot get the store of the default process group: {type(error).__name__}: {error}. "
            "Call torch.distributed.init_process_group with init_method or store (torch 2.11 to 2.13)."
        ) from error
    return Membership(default, c10d.get_rank(), c10d.get_world_size())


def members_of(membership: Membership, ranks: Sequence[int] | None) -> tuple[int, ...]:
    """Who takes part, ascending; ``None``: everybody.

    Raises:
        OptionsError: This rank is not among them, or one of them does not exist.
    """
    members = tuple(sorted(set(range(membership.world_size) if ranks is None else ranks)))
    if membership.rank not in members or members[0] < 0 or members[-1] >= membership.world_size:
        raise OptionsError(
            f"ranks is {list(members)}. Every rank must be between 0 and {membership.world_size - 1}, "
            f"and this rank ({membership.rank}) must be among them."
        )
    return members


def _initialized() -> Any:
    """``torch.distributed.distributed_c10d`` if a process group is up; torch is not imported for this."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d


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
    steps = agreement_steps(mine, name, membership.rank, members, *limits)
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
    launches: Sequence[Launch], membership: Membership | None, ranks: Sequence[int] | None = None
) -> Entry | None:
    """Return the launch sequence that is in force for the launches of a graph; ``None``: none yet, or a rank alone.

    Never waits for another rank. Where the store fails, what this rank has read before counts.

    Args:
        launches: Those of the graph, in their original order.
        membership: This rank among the others; ``None``: it is alone.
        ranks: Who must agree; ``None``: all.
    """
    return None if membership is None else _ask_log(tuple(launches), None, membership, ranks)


def settle_sequence(entry: Entry, membership: Membership | None, ranks: Sequence[int] | None = None) -> Entry | None:
    """Put a launch sequence in force; return the one that is, which may be another.

    ``None``: there can be none. Whatever the graph launches, ranks that cut the program into other graphs launch it
    otherwise, so it must not run. The arguments besides ``entry`` are those of :func:`find_sequence`.
    """
    return entry if membership is None else _ask_log(entry.launches, entry, membership, ranks)


def is_part_of_others(entry: Entry, membership: Membership | None, ranks: Sequence[int] | None = None) -> bool:
    """Tell whether ranks that cut the program otherwise may launch what is in force for an entry in another sequence.

    Never asks the store: by what :func:`find_sequence` has read.
    """
    with _logs_lock:
        return membership is not None and _log_of(membership, ranks)[0].launch_elsewhere(entry)


def _log_of(membership: Membership, ranks: Sequence[int] | None) -> tuple[SequencesInForce, str]:
    """Return what is known of the log of some ranks, and the prefix of its keys."""
    store, prefix = membership.store, prefix_of(membership, members_of(membership, ranks))
    log = next((known for s, p, known in _logs if s is store and p == prefix), None)
    if log is None:
        log = SequencesInForce()
        _logs.append((store, prefix, log))
    return log, prefix


def _ask_log(
    launches: tuple[Launch, ...], entry: Entry | None, membership: Membership, ranks: Sequence[int] | None
) -> Entry | None:
    with _logs_lock:
        log, prefix = _log_of(membership, ranks)
        for _ in range(_TRIES):
            try:
                steps = log_steps(log, launches, entry)
                found: Entry | None = run_steps(steps, membership.store, prefix, (0.0, 0.0), time.monotonic, time.sleep)
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
    if strict and not result.agreed and not result.verdict.launches_alike:
        raise AgreementError(f"the ranks do not agree on an order for graph {mine.name!r}: {result.reason}")
    return result


def broadcast_costs(
    costs: Mapping[str, float],
    name: str = "costs",
    timeout_s: float = TIMEOUT_S,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    strict: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, float]:
    """Rank 0's costs, on every rank, to the last bit: no two machines measure the same.

    Rank 0 puts its table into the store, the others wait for it. The first table under a name stays for the whole
    run: rank 0 too gets that one back, if it measures again.

    Where the table does not come, a rank warns and keeps its own; :func:`~overlap_sched.distributed.agree` then
    finds that the ranks differ in their costs, and all keep the original order.

    Args:
        costs: What this rank has measured: times (microseconds) by name.
        name: Which table; one for each thing that is measured.
        timeout_s: How long to wait for rank 0 (seconds).
        store: What the ranks share; a ``torch.distributed.Store``. With it ``rank`` and ``world_size``; default: those
            of the default process group.
        rank: This rank.
        world_size: How many ranks there are.
        strict: Raise where the own table would be kept.
        clock: Seconds; tests give their own.
        sleep: Waits some seconds; tests give their own.

    Raises:
        AgreementError: With ``strict``: rank 0 did not come, or the store failed.
        OptionsError: Only some of ``store``, ``rank``, ``world_size`` are given.
    """
    text: bytes | None = None
    try:
        membership = membership_of(store, rank, world_size)
        if membership is None:
            return dict(costs)
        shared, key, backoff = membership.store, f"{PREFIX}costs/{name}", Backoff(clock, sleep)
        if membership.rank == 0:
            text = shared.compare_set(key, "", json.dumps(dict(costs)))
        else:
            while not (published := shared.check([key])) and backoff.pause(timeout_s):
                pass
            text = shared.get(key) if published else None
        reason = f"rank 0 did not publish them within {timeout_s:g} s"
    except OptionsError:
        raise
    except Exception as error:  # torch raises several types, none of them public
        text, reason = None, f"{type(error).__name__}: {error}"
    if text is not None:
        table: dict[str, float] = json.loads(text)
        return table
    message = f"cannot get the costs {name!r} of rank 0 ({reason})."
    if strict:
        raise AgreementError(message)
    warnings.warn(f"{message} This rank uses its own.", OverlapSchedWarning, stacklevel=2)
    return dict(costs)


def run_token(store: Store | None = None, rank: int | None = None, world_size: int | None = None) -> str | None:
    """A text that is the same on all ranks of this run and in no other run; ``None`` for a rank alone.

    In the key of a cache whose entries depend on an agreement it keeps them from serving a later run, in which the
    agreement does not stand. Within a run every rank must have the same entries, see ``docs/agreement.md``. Never
    waits: whoever asks first makes it. If the store fails, the token is this rank's own, so its caches miss.

    Raises:
        OptionsError: Only some of ``store``, ``rank``, ``world_size`` are given.
    """
    own = uuid.uuid4().hex
    try:
        membership = membership_of(store, rank, world_size)
        return None if membership is None else membership.store.compare_set(f"{PREFIX}run", "", own).decode()
    except OptionsError:
        raise
    except Exception:  # torch raises several types, none of them public
        return own
