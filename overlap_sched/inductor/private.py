"""The names of Inductor's scheduler, all that we use of them in one place, for the versions in which we have seen them.

torch says of its scheduler that it may change at any time. So nothing else of this package imports from it, and this
module is imported only behind :func:`overlap_sched.inductor.versions.check_torch`.
"""

from collections.abc import Sequence
from typing import Any

from torch._inductor import config, ir
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.wrapper import can_match_buffer_size
from torch._inductor.comms import is_async_collective
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import (
    FusedSchedulerNode,
    GroupedSchedulerNode,
    NopKernelSchedulerNode,
    OutputNode,
    SchedulerNode,
)
from torch._inductor.utils import contains_collective, contains_wait, is_collective, is_nonfreeable_buffers, is_wait
from torch._inductor.virtualized import V

from overlap_sched.inductor import names

__all__ = [
    "BackendFeature",
    "FusedSchedulerNode",
    "GroupedSchedulerNode",
    "NopKernelSchedulerNode",
    "OutputNode",
    "SchedulerNode",
    "V",
    "WeakDep",
    "can_match_buffer_size",
    "config",
    "contains_collective",
    "contains_wait",
    "graph_name",
    "ir",
    "is_async_collective",
    "is_collective",
    "is_nonfreeable_buffers",
    "is_wait",
    "members",
    "simple_overlap",
]


def members(node: Any) -> Sequence[Any]:
    """The unfused nodes in a scheduler node: of fused, foreach and grouped ones, nested ones too."""
    parts = node.get_nodes()
    if len(parts) == 1 and parts[0] is node:
        return parts
    return [one for part in parts for one in members(part)]


def simple_overlap(snodes: list[Any]) -> list[Any]:
    """The nodes after torch's own pass of that name, which is there from 2.14 on."""
    from torch._inductor import comms

    return list(comms.simple_overlap(snodes))


def graph_name() -> str:
    """What is being compiled, see :func:`overlap_sched.inductor.names.graph_name`."""
    graph = V.graph
    kind = "inference" if graph.is_inference else "backward" if graph.is_backward else "forward"
    return names.graph_name(kind, graph.name or "", graph.graph_id)
