"""All ranks alike: the same order on every rank, or the original one on all.

    mine = digest_of(problem, options, order)
    if agree(mine).agreed: ...   # use the order; else keep the original

Nothing here imports torch unless a process group is up, or :func:`shard` or :func:`second_communicators` is asked for.
"""

from importlib import import_module
from typing import Any

from overlap_sched.distributed.agreement import TIMEOUT_S, Agreement, Membership, agree, broadcast_costs
from overlap_sched.distributed.digest import Digest, Verdict, digest_of

__all__ = ["TIMEOUT_S", "Agreement", "Digest", "Membership", "Verdict", "agree", "broadcast_costs", "digest_of"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name in ("ShardedModule", "shard"):
        return getattr(import_module("overlap_sched.sharding"), name)
    if name == "second_communicators":
        return import_module("overlap_sched.distributed.communicators").second_communicators
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
