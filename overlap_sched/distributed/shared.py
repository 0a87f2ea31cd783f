"""What all ranks take from one of them: measured costs, and a name for this run of the job."""

import json
import time
import uuid
import warnings
from collections.abc import Callable, Mapping

from overlap_sched.distributed.agreement import TIMEOUT_S, Backoff
from overlap_sched.distributed.membership import PREFIX, Membership, Store, membership_of
from overlap_sched.errors import AgreementError, OptionsError, OverlapSchedWarning


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
    try:
        membership = membership_of(store, rank, world_size)
        if membership is None:
            return dict(costs)
        text = _from_rank_0(membership, f"{PREFIX}costs/{name}", json.dumps(dict(costs)), timeout_s, clock, sleep)
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


def _from_rank_0(
    membership: Membership,
    key: str,
    mine: str,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> str | None:
    store, backoff = membership.store, Backoff(clock, sleep)
    if membership.rank == 0:
        return store.compare_set(key, "", mine).decode()
    while not store.check([key]):
        if not backoff.pause(timeout_s):
            return None
    return store.get(key).decode()


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
