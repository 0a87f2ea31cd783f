"""All ranks decide alike, through the process group's store, with a time limit and no collective.

NCCL hangs when ranks launch collectives in different orders. Before a new order is used, every rank shows the digest
of it; only if all are the same do all use it. The protocol, and why it cannot come out differently on two ranks, is in
:mod:`overlap_sched.distributed.protocol`; what is guaranteed and what is not in ``docs/agreement.md``.

Torch is touched only in :func:`membership_of`, and there its one private name that is needed
(``_get_default_store``: the store of ``init_process_group``; there is no public way to it).
"""

import hashlib
import json
import sys
import time
import uuid
import warnings
from collections.abc import Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

from overlap_sched.distributed.digest import Digest, Verdict
from overlap_sched.distributed.protocol import ABSENT_SHARE, StoreCall, StoreFailedError, agreement_steps, wait_for
from overlap_sched.distributed.sequences import Entry, Launch, SequencesInForce, log_steps
from overlap_sched.errors import AgreementError, OptionsError, OverlapSchedWarning

TIMEOUT_S = 300.0
"""How long to wait for the slowest rank (seconds).

Ranks reach the same graph minutes apart where one compiles from cold caches. A rank that has its graph may already
stand in a collective, which torch ends after 10 minutes on NCCL (``default_pg_nccl_timeout``): half of that leaves
time to compile the rest. Where the process group has another timeout, take half of that one."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1
"""Time between two looks: twice as long each time. A thousand ranks make ten thousand small requests a second at most;
a rank learns what it waits for at most a tenth of a second late."""

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


class Clock(Protocol):
    """What is used of the module ``time`` (seconds)."""

    def monotonic(self) -> float: ...  # noqa: D102
    def sleep(self, seconds: float, /) -> object: ...  # noqa: D102


@dataclass(frozen=True)
class Membership:
    """A rank among those that share a store.

    Attributes:
        ranks: Those that must agree, this one among them, the same on each of them; ``None``: all.
    """

    store: Store
    rank: int
    world_size: int
    ranks: Sequence[int] | None = None

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Who takes part, ascending.

        Raises:
            OptionsError: This rank is not among them, or one of them does not exist.
        """
        members = tuple(sorted(set(range(self.world_size) if self.ranks is None else self.ranks)))
        if self.rank not in members or members[0] < 0 or members[-1] >= self.world_size:
            raise OptionsError(
                f"ranks is {list(members)}. Every rank must be between 0 and {self.world_size - 1}, "
                f"and this rank ({self.rank}) must be among them."
            )
        return members

    @property
    def prefix(self) -> str:
        """Other members, other keys: a rank may agree with different others about different graphs."""
        everyone = len(self.members) == self.world_size
        return f"{PREFIX}agreement/{'all' if everyone else short_hash(repr(self.members))}/"


def short_hash(text: str) -> str:
    """Sixteen hexadecimal digits, the same on every rank."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def membership_of(ranks: Sequence[int] | None = None) -> Membership | None:
    """The membership in torch's default process group; ``None``: there is nobody to agree with.

    That is so without a process group, with one rank, and with torch's ``fake`` backend (one process for all ranks).

    Raises:
        AgreementError: There are several ranks, but torch does not give access to their store.
    """
    c10d = _initialized()
    if c10d is None or c10d.get_world_size() == 1 or c10d.get_backend() == "fake":
        return None
    try:
        return Membership(c10d._get_default_store(), c10d.get_rank(), c10d.get_world_size(), ranks)
    except Exception as error:
        raise AgreementError(
            f"cannot get the store of the default process group: {type(error).__name__}: {error}. "
            "Call torch.distributed.init_process_group with init_method or store (torch 2.11 to 2.13)."
        ) from error


def _initialized() -> Any:
    """``torch.distributed.distributed_c10d`` if a process group is up; torch is not imported for this."""
    dist = sys.modules.get("torch.distributed")
    return dist.distributed_c10d if dist is not None and dist.is_available() and dist.is_initialized() else None


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
    """

    agreed: bool
    verdict: Verdict
    in_doubt: bool = False

    @property
    def reason(self) -> str | None:
        """Why the original order is kept; ``None`` if agreed."""
        return self.verdict.reason


def agree(
    mine: Digest,
    timeout_s: float = TIMEOUT_S,
    membership: Membership | None = None,
    *,
    ranks: Sequence[int] | None = None,
    strict: bool = False,
    clock: Clock = time,
) -> Agreement:
    """Compare this rank's digest with that of all others; every rank gets the same decision.

    Call it once per graph that has collectives, on every rank, whether or not scheduling succeeded there, as the last
    thing before the order is used: whatever fails after it fails on one rank alone. It returns at the latest
    ``timeout_s`` after it was called plus the time of a few store operations. Alone (no process group, one rank,
    torch's ``fake`` backend) a rank agrees with itself.

    Args:
        mine: See :func:`~overlap_sched.distributed.digest.digest_of`.
        timeout_s: How long to wait for the others (seconds).
        membership: This rank, the others and what they share; default: those of the default process group.
        ranks: Who of the default process group must agree: all whose collectives may meet those of this graph, the same
            list on each of them. Default: every rank.
        strict: Raise where the original order would be kept, and not only the order of launches.
        clock: Tells the time and sleeps.

    Raises:
        AgreementError: With ``strict``: the ranks differ, one did not come, or the store failed.
        OptionsError: ``ranks`` is not a list of ranks with this one among them.
    """
    in_doubt = False
    try:
        here = membership or membership_of(ranks)
        if here is None:
            return Agreement(True, Verdict(agreed=True))
        steps = agreement_steps(mine, uuid.uuid4().hex, here.rank, here.members, timeout_s)
        verdict: Verdict = run_steps(steps, here, timeout_s, clock)
        if verdict.agreed:  # nothing that could fail comes after this
            return Agreement(True, verdict)
    except StoreFailedError as error:
        verdict, in_doubt = error.verdict, error.in_doubt
    except AgreementError as error:
        verdict = Verdict(False, str(error))
    if strict and not verdict.agreed and not verdict.launches_alike:
        raise AgreementError(f"the ranks do not agree on an order for graph {mine.name!r}: {verdict.reason}")
    return Agreement(verdict.agreed, verdict, in_doubt)


def run_steps(
    steps: Generator[StoreCall, Any, Any], membership: Membership, timeout_s: float, clock: Clock = time
) -> Any:
    """Drive one rank's steps on a real store and a real clock; what fails is thrown into them. Returns what they do.

    Pauses between looks at what another rank is to do are short at first and long later, and end with the limit.
    """
    began_s, pause_s = clock.monotonic(), FIRST_PAUSE_S
    result: Any = None
    proceed = steps.send
    try:
        while True:
            step = proceed(result)
            proceed = steps.send
            try:
                if step.call == "pause":
                    limit_s = timeout_s * ABSENT_SHARE if step.args[0] else timeout_s
                    left_s = began_s + limit_s - clock.monotonic()
                    result = left_s <= 0
                    if not result:
                        clock.sleep(min(pause_s, left_s))
                        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                else:
                    result = perform(step, membership.store, membership.prefix)
            except Exception as error:  # torch's stores raise several types, none of them public
                proceed, result = steps.throw, error
    except StopIteration as done:
        return done.value


def perform(step: StoreCall, store: Store, prefix: str) -> Any:
    """One step on a store, its keys behind a prefix; bytes come back as text."""
    key, *rest = step.args
    key = [prefix + k for k in key] if isinstance(key, list) else prefix + key
    result = getattr(store, step.call)(key, *rest)
    return result.decode() if isinstance(result, bytes) else result


_logs: dict[tuple[int, str], tuple[Store, SequencesInForce]] = {}
"""What this process has read of each log of launch sequences, by its store and the prefix of its keys."""
_logs_lock = Lock()


def sequence_in_force(
    launches: Sequence[Launch], membership: Membership | None, entry: Entry | None = None
) -> Entry | None:
    """Return the launch sequence that is in force for the launches of a graph; ``None``: none yet.

    With an ``entry`` for these launches: put that in force where nothing is; returns what is, which may be another.
    ``None``: there can be none. Whatever the graph launches, ranks that cut the program into other graphs launch it
    otherwise, so it must not run.

    Never waits for another rank. Where the store fails, what this rank has read before counts.

    Args:
        launches: Those of the graph, in their original order.
        membership: This rank among the others; ``None``: it is alone.
        entry: What is to be in force.
    """
    if membership is None:
        return entry
    with _logs_lock:
        log = _log_of(membership)
        for _ in range(3):  # where the store fails
            try:
                found: Entry | None = run_steps(log_steps(log, tuple(launches), entry), membership, 0.0)
                return found
            except Exception:  # torch's stores raise several types, none of them public
                continue
        return log.find(launches) if entry is None else deepcopy(log).decide(entry)


def is_part_of_others(entry: Entry, membership: Membership | None) -> bool:
    """Tell whether ranks that cut the program otherwise may launch what is in force for an entry in another sequence.

    Never asks the store: by what :func:`sequence_in_force` has read.
    """
    with _logs_lock:
        return membership is not None and _log_of(membership).launch_elsewhere(entry)


def _log_of(membership: Membership) -> SequencesInForce:
    store = membership.store
    return _logs.setdefault((id(store), membership.prefix), (store, SequencesInForce()))[1]


def broadcast_costs(
    costs: Mapping[str, float],
    name: str = "costs",
    timeout_s: float = TIMEOUT_S,
    membership: Membership | None = None,
    clock: Clock = time,
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
        membership: This rank, the others and what they share; default: those of the default process group.
        clock: Tells the time and sleeps.
    """

    def steps(rank: int) -> Generator[StoreCall, Any, list[str] | None]:
        if rank == 0:
            yield StoreCall("compare_set", (f"costs/{name}", "", json.dumps(dict(costs))))
        return (yield from wait_for([f"costs/{name}"]))

    reason = f"rank 0 did not publish them within {timeout_s:g} s"
    try:
        here = membership or membership_of()
        if here is None:
            return dict(costs)
        for text in run_steps(steps(here.rank), here, timeout_s, clock) or ():
            table: dict[str, float] = json.loads(text)
            return table
    except Exception as error:  # torch raises several types, none of them public
        reason = f"{type(error).__name__}: {error}"
    message = f"cannot get the costs {name!r} of rank 0 ({reason}). This rank uses its own."
    warnings.warn(message, OverlapSchedWarning, stacklevel=2)
    return dict(costs)
