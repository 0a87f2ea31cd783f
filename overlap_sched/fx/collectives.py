"""Which operators are collectives and waits: by operator objects, never by how they print."""

from enum import Enum
from typing import NamedTuple

import torch
from torch._ops import OpOverload


class Role(Enum):
    """What an operator does with the communication streams."""

    LAUNCH = "launch"
    """Starts a collective and returns at once; a wait makes its output valid."""
    WAIT = "wait"
    """Makes the compute stream wait for the collective whose output it is given."""
    BLOCKING = "blocking"
    """Communicates on the compute stream: done when it returns."""


class Comm(NamedTuple):
    """A communication operator.

    Attributes:
        role: See :class:`Role`.
        op: Its name without namespace and overload: ``"all_gather_into_tensor"``.
        point_to_point: Sends or receives: must meet its partner, so it keeps its order among its group's collectives.
        known: Whether it is listed here, or is taken for communication by its family and its arguments.
    """

    role: Role
    op: str
    point_to_point: bool = False
    known: bool = True


_FUNCTIONAL = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_out",
    "all_gather_into_tensor_single",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "all_to_all_single",
    "broadcast",
    "broadcast_",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out",
    "reduce_scatter_tensor_single",
)
HOST_COPIES = ("offload", "reload")
"""Between a device and pinned host memory, on a stream of their own (``torch._functorch._activation_offloading``)."""
_POINT_TO_POINT = ("batch_p2p_ops", "irecv", "isend")
_LAUNCHES = {
    "_c10d_functional": _FUNCTIONAL + _POINT_TO_POINT,
    "_c10d_functional_autograd": _FUNCTIONAL,
    "c10d_functional": _FUNCTIONAL + _POINT_TO_POINT,
    "symm_mem": ("_low_contention_all_gather", "_low_contention_reduce_scatter"),
    "ao": HOST_COPIES,
}
_WAITS = {
    "_c10d_functional": ("wait_tensor", "wait_tensors"),
    "c10d_functional": ("wait_tensor",),
    "ao": ("wait_tensor",),
    "overlap_sched": ("wait_tensors",),  # in dumps that an older torch reads, see overlap_sched.dump.newer
}
_BLOCKING = {
    "_dtensor": (
        "shard_dim_alltoall",
    ),  # waits for its work before it returns (torch/csrc/distributed/c10d/Functional.cpp)
    "symm_mem": (
        "_low_contention_all_gather_ce_multicast",  # copies on the stream that calls it, and registers no work
        "_low_contention_all_gather_ce_multicast_out",
        "all_to_all_vdev",
        "all_to_all_vdev_2d",
        "all_to_all_vdev_2d_offset",
        "fused_all_gather_matmul",
        "fused_all_gather_scaled_matmul",
        "fused_matmul_reduce_scatter",
        "fused_scaled_matmul_reduce_scatter",
        "multi_root_tile_reduce",
        "multimem_all_gather_out",
        "multimem_all_reduce_",
        "multimem_one_shot_all_reduce",
        "multimem_one_shot_all_reduce_out",
        "multimem_one_shot_reduce_out",
        "nccl_all_to_all_nd",
        "nccl_reduce_scatter_offset",
        "nvshmem_all_to_all",
        "nvshmem_broadcast",
        "one_shot_all_reduce",
        "one_shot_all_reduce_copy",
        "one_shot_all_reduce_copy_out",
        "one_shot_all_reduce_out",
        "reduce_scatter_out",
        "tile_reduce",
        "two_shot_all_reduce_",
        "two_shot_all_reduce_out",
    ),
}


_FAMILIES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
"""Nothing in these namespaces computes: what names a process group communicates."""


def comm_of(op: OpOverload) -> Comm | None:
    """What a communication operator does; ``None`` for all others.

    An operator of these families that is not listed counts as blocking: what is not known to return early must not be
    thought to. (torch 2.16 plans such ones, for collectives with a ``config``: done on the calling stream when they
    return, https://github.com/pytorch/pytorch/pull/194826.)

    Looked up once per operator and not kept in a table: some are registered only when their module is imported.
    """
    for role, family in ((Role.LAUNCH, _LAUNCHES), (Role.WAIT, _WAITS), (Role.BLOCKING, _BLOCKING)):
        for name in family.get(op.namespace, ()):
            if getattr(getattr(torch.ops, op.namespace), name, None) is op.overloadpacket:
                return Comm(role, name, name in _POINT_TO_POINT)
    names = {argument.name for argument in op._schema.arguments}
    if op.namespace in _FAMILIES and not names.isdisjoint(("group_name", "ranks")):
        return Comm(Role.BLOCKING, op.overloadpacket.__name__, known=False)
    return None
