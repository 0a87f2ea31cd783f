"""Second communicators: a process group of the same ranks, so that two collectives of one group can run at a time.

    init_process_group("nccl")
    second_communicators()          # on every rank, before anything is compiled

A process group runs its collectives one after the other. Those that a ``Stream`` rewrite moves run in the second group,
beside them. Making one is itself a collective: every rank makes the same ones, in one order. NCCL does not promise that
kernels of two communicators on one device make progress together: if ranks start them in different orders, and one of
them fills the device, they can wait for each other for ever. So all ranks launch in one order, across communicators too
(``preserve_collective_order="all"`` keeps it), and this is off unless it is asked for.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from overlap_sched.errors import OptionsError
from overlap_sched.transform.rewrites import second_group


def second_communicators(groups: Sequence[str] | None = None) -> dict[str, str]:
    """Make the second communicators of process groups; again for the same groups: nothing.

    Args:
        groups: Their names (``group.group_name``); the same on all ranks of the job, in the same order. Each rank may
            name its own group of a mesh's dimension in the same place, as long as the groups of one place do not
            overlap. ``None``: the group of all ranks.

    Returns:
        Per group the name of its second one, by which functional collectives find it.

    Raises:
        OptionsError: There is no such group, or no process group at all.
    """
    if not dist.is_initialized():
        raise OptionsError("there is no process group to make a second one of. Call init_process_group first.")
    found = {}
    for name in [dist.group.WORLD.group_name] if groups is None else groups:
        found[name] = second = second_group(name)
        if _find(second) is None:
            first = _find(name)
            if first is None:
                raise OptionsError(f"there is no process group {name!r} to make a second one of.")
            ranks = dist.get_process_group_ranks(first)
            local = len(ranks) < dist.get_world_size()
            made = dist.new_group(ranks, backend=dist.get_backend(first), use_local_synchronization=local)
            c10d._register_process_group(second, made)
    return found


def _find(name: str) -> dist.ProcessGroup | None:
    try:
        return c10d._resolve_process_group(name)
    except Exception:  # torch raises several types for "no such group"
        return None
