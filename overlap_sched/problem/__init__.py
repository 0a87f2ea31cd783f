"""What is scheduled: pure data that knows nothing else. The words are drawn in :mod:`overlap_sched.problem.model`."""

from overlap_sched.problem.model import EXAMPLE, MemoryModel, Order, Problem
from overlap_sched.problem.node import MAX_TOTAL_BYTES, Group, Kind, Node, NodeId, Position, Storage, StorageId

__all__ = [
    "EXAMPLE",
    "MAX_TOTAL_BYTES",
    "Group",
    "Kind",
    "MemoryModel",
    "Node",
    "NodeId",
    "Order",
    "Position",
    "Problem",
    "Storage",
    "StorageId",
]
