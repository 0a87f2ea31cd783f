"""Kernels that write their output over an input in every order: the two are one storage."""

from collections import Counter
from typing import Any

from overlap_sched.inductor.lift.buffers import Buffers, extent
from overlap_sched.inductor.private import (
    BackendFeature,
    NopKernelSchedulerNode,
    OutputNode,
    V,
    can_match_buffer_size,
    config,
    ir,
)

_KEPT = (ir.NoneLayout, ir.MultiOutputLayout, ir.MutationLayoutSHOULDREMOVE)
"""Layouts of buffers that are not written over."""


def read_in_place(b: Buffers, at: int, member: Any, internal: frozenset[str], notes: Counter[str]) -> None:
    """Where a kernel writes its output over an input **in every order**, both are one storage.

    The conditions are those of ``BaseSchedulerNode.decide_inplace_update``, with one difference: of the input's other
    users, all must be ancestors of this kernel; torch also asks which have run already, which an order decides. What
    depends on the order counts as two storages.
    """
    if not config.inplace_buffers or not V.graph.has_feature(member.get_device(), BackendFeature.INPLACE_BUFFERS):
        return
    taken: set[str] = set()
    for out in member.get_outputs():
        name = out.get_name()
        if b.roots.get(name) != (name,) or name in internal or not out.node.should_allocate():
            continue
        for read in member.read_writes.reads:
            source = _overwritable(member, read, taken)
            if source is None or len(b.of(read.name)) != 1 or b.of(read.name)[0] not in b.maker:
                continue
            if _fits(source.node, out.node):
                taken.add(read.name)
                b.roots[name] = b.roots[read.name]
                del b.nbytes[name], b.maker[name]
                b.in_place.setdefault(at, []).append(b.roots[name][0])
                b.overwrites.append((read.name, name))
                notes["in_place"] += 1
                break


def _overwritable(member: Any, read: Any, taken: set[str]) -> Any | None:
    """The buffer that is read, if this kernel may write over it whatever the order."""
    scheduler = member.scheduler
    source = scheduler.name_to_buf.get(read.name)
    if source is None or read.name in taken or not V.graph.wrapper_code.can_reuse(source, member):
        return None
    users = [user for user in source.users if user.node.get_name() not in member.ancestors]
    if len(users) != 1 or isinstance(users[0].node, OutputNode) or users[0].node is not member:
        return None
    if not users[0].can_inplace or source.node.get_inputs_that_alias_output():
        return None
    if isinstance(source.defining_op, NopKernelSchedulerNode) or isinstance(source.node.get_output_spec(), _KEPT):
        return None
    one_index = len({access for access in member.read_writes.reads_and_writes() if access.name == read.name}) == 1
    return source if one_index else None


def _fits(source: Any, out: Any) -> bool:
    """``can_match_buffer_size``; torch asks its symbols, which buffers that are alike need not."""
    alike = source.get_device() == out.get_device() and source.get_dtype() == out.get_dtype()
    return (alike and extent(source) == extent(out)) or can_match_buffer_size(source, out)
