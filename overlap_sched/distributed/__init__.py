"""All ranks alike: the same order on every rank, or the original one on all.

    mine = digest_of(problem, options, order)
    if agree(mine).agreed: ...   # use the order; else keep the original

Nothing here imports torch unless a process group is up.
"""

from overlap_sched.distributed.agreement import TIMEOUT_S, Agreement, agree
from overlap_sched.distributed.digest import Digest, digest_of
from overlap_sched.distributed.shared import broadcast_costs, run_token
from overlap_sched.distributed.verdict import Verdict

__all__ = ["TIMEOUT_S", "Agreement", "Digest", "Verdict", "agree", "broadcast_costs", "digest_of", "run_token"]
