"""All ranks alike: the same order on every rank, or the original one on all.

    mine = digest_of(problem, options, order)
    if agree(mine).agreed: ...   # use the order; else keep the original

Nothing here imports torch unless a process group is up, or :func:`shard` is asked for.
"""

from typing import Any

from overlap_sched.distributed.agreement import TIMEOUT_S, Agreement, agree
from overlap_sched.distributed.digest import Digest, digest_of
from overlap_sched.distributed.shared import broadcast_costs, run_token
from overlap_sched.distributed.verdict import Verdict

__all__ = ["TIMEOUT_S", "Agreement", "Digest", "Verdict", "agree", "broadcast_costs", "digest_of", "run_token"]


def __getattr__(name: str) -> Any:
    """Sharding needs torch: imported when it is first asked for."""
    if name in ("ShardedModule", "shard"):
        import overlap_sched.sharding

        return getattr(overlap_sched.sharding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
