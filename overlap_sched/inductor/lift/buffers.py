"""The storages behind Inductor's buffers: who shares which, how large they are, who allocates them.

Inductor has many names for one piece of memory: a mutation renames what it writes (a wait its collective's output),
a view and a part of a concatenation live in another's storage, a kernel may write over an input that is not needed
any more. And some names have no memory: a buffer that only its own fused kernel reads stays in registers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.reading import Reading
from overlap_sched.fx.sizes import Sizes
from overlap_sched.inductor.private import (
    BackendFeature,
    FusedSchedulerNode,
    GroupedSchedulerNode,
    NopKernelSchedulerNode,
    OutputNode,
    SchedulerNode,
    V,
    can_match_buffer_size,
    config,
    ir,
    members,
    size_of,
)

Roots = tuple[str, ...]
"""Names of the storages in which a buffer lives: that of the buffer or input that made it."""
_KEPT = (ir.NoneLayout, ir.MultiOutputLayout, ir.MutationLayoutSHOULDREMOVE)
"""Layouts of buffers that are not written over."""


@dataclass
class Buffers:
    """Names of buffers and what stands behind them.

    Attributes:
        sizes: Numbers for symbolic sizes.
        roots: Per buffer, input or constant, its storages; none where it has no memory.
        nbytes: Per storage, its size.
        maker: Per storage, the position of the scheduler node that allocates it; not for inputs.
        producer: Per buffer, the position of the scheduler node that gives it.
        inputs: The storages of inputs and constants, in their order.
        held: Inputs that others hold on, see :func:`overlap_sched.inductor.fx_stage.note_held`.
        in_place: Per position, storages that it writes over: it is their last reader in any order.
        overwrites: The same as pairs of buffers: what is written over, and by what.
        internal: Buffers that never leave a fused kernel.
        elements: Per size, stride and offset seen so far, how many elements are allocated.
    """

    sizes: Sizes
    roots: dict[str, Roots] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    maker: dict[str, int] = field(default_factory=dict)
    producer: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    in_place: dict[int, list[str]] = field(default_factory=dict)
    overwrites: list[tuple[str, str]] = field(default_factory=list)
    internal: set[str] = field(default_factory=set)
    elements: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def of(self, name: str) -> Roots:
        """The storages of a name.

        Raises:
            UnsupportedError: Nothing has that name.
        """
        try:
            return self.roots[name]
        except KeyError:
            raise UnsupportedError(
                f"a kernel reads {name!r}, which is neither a buffer of this graph nor one of its inputs."
            ) from None


def read_buffers(snodes: Sequence[Any], reading: Reading, notes: Counter[str]) -> Buffers:
    """Read all buffers of a graph; ``snodes`` in any order that can run."""
    buffers = Buffers(reading.storages.sizes(V.graph.sizevars.shape_env))
    _read_inputs(buffers, reading)
    for at, snode in enumerate(snodes):
        for out in snode.get_outputs():
            buffers.producer[out.get_name()] = at
    for at, snode in enumerate(snodes):
        internal = _internal_names(snode)
        buffers.internal |= internal
        for member in members(snode):
            for out in member.get_outputs():
                _read_output(buffers, at, out, internal, notes)
            if isinstance(member, SchedulerNode):
                _read_in_place(buffers, at, member, internal, notes)
    return buffers


def _read_inputs(b: Buffers, reading: Reading) -> None:
    graph, storages = V.graph, reading.storages
    by_storage: dict[int, str] = {}
    if graph.is_backward and graph.bw_donated_idxs is not None:
        b.held = {name for i, name in enumerate(graph.graph_input_names) if i not in graph.bw_donated_idxs}
    placeholders = (v for v, node in enumerate(reading.nodes) if node.op == "placeholder")
    for name, v in zip(graph.graph_input_names, placeholders, strict=False):
        raw = reading.outs[v]
        b.roots[name] = tuple(by_storage.setdefault(s, name) for s in raw)
        if raw and b.roots[name] == (name,):
            b.nbytes[name] = storages.nbytes[raw[0]]
            b.inputs.append(name)
    for name in graph.graph_inputs:
        b.roots.setdefault(name, ())  # sizes, random states
    for name, constant in graph.constants.items():
        b.roots[name] = (name,)
        b.nbytes[name] = constant.untyped_storage().nbytes()
        b.inputs.append(name)
    for name in graph.torchbind_constants:
        b.roots[name] = ()


def _internal_names(snode: Any) -> frozenset[str]:
    """Buffers that never leave a fused kernel."""
    names: set[str] = set()
    groups = snode.snodes if isinstance(snode, GroupedSchedulerNode) else [snode]
    for group in groups:
        if isinstance(group, FusedSchedulerNode):
            own = {member.get_name() for member in members(group)}
            for out in group.get_outputs():
                name = out.get_name()
                if out.users and group.scheduler.can_buffer_be_removed_through_fusion(name, own):
                    names.add(name)
    return frozenset(names)


def _read_output(b: Buffers, at: int, out: Any, internal: frozenset[str], notes: Counter[str]) -> None:
    name, node = out.get_name(), out.node
    shared = [*out.get_mutations(), *out.get_aliases()]
    layout = getattr(node, "layout", None)
    if isinstance(layout, ir.NonOwningLayout):
        whole = layout.view.get_name()
        shared.append(whole)
        if whole not in b.roots:  # a part of a concatenation is written before the whole is named
            _allocate(b, at, whole, V.graph.get_buffer(whole))
    if shared:
        b.roots[name] = tuple(dict.fromkeys(root for other in shared for root in b.of(other)))
    elif (
        name in internal or name in V.graph.removed_buffers or isinstance(layout, ir.NoneLayout | ir.MultiOutputLayout)
    ):
        b.roots[name] = ()
    elif isinstance(node, ir.MultiOutput):
        _allocate(b, b.producer[_container(node)], name, node)
    elif name not in b.roots:
        _allocate(b, at, name, node)
    notes["buffers"] += 1


def _container(node: Any) -> str:
    """The name of the buffer out of which a kernel with several outputs gives this one."""
    while isinstance(node, ir.MultiOutput):
        node = node.inputs[0]
    return node.get_name()


def _allocate(b: Buffers, at: int, name: str, node: Any) -> None:
    key = _extent(node)
    elements = b.elements.get(key)
    if elements is None:  # layers are alike, and torch computes with symbols
        elements = b.elements[key] = b.sizes.largest(size_of(V.graph.get_allocation_storage_size(node)))
    b.nbytes[name] = elements * node.get_dtype().itemsize
    b.roots[name] = (name,)
    b.maker[name] = at


def _extent(node: Any) -> tuple[Any, ...]:
    """Return what determines how many elements are allocated for a buffer: its size, stride and offset."""
    layout = node.get_layout()
    return (*V.graph.get_allocation_size(node), *layout.stride, layout.offset)


def _read_in_place(b: Buffers, at: int, member: Any, internal: frozenset[str], notes: Counter[str]) -> None:
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
    return (alike and _extent(source) == _extent(out)) or can_match_buffer_size(source, out)


def tell_sizes(snodes: Sequence[Any], buffers: Buffers) -> None:
    """Give torch's own memory planner the sizes that we know: generated code then stays within the peak planned.

    When code is written, Inductor lets a dead buffer lie for a later one of its size, as long as *its estimate* of the
    peak (``memory.estimate_peak_memory``, which adds up ``SchedulerBuffer.mpi_buffer``) is not exceeded. That counts
    the output of a kernel that writes over its input as new, and what stays inside a fused kernel as memory: it is too
    high, and what is held within that slack is real. Here both are set right, for the buffers of which we know it in
    every order.
    """
    by_name = {out.get_name(): out for snode in snodes for out in snode.get_outputs()}
    for name in buffers.internal:
        by_name[name].mpi_buffer.size_alloc = by_name[name].mpi_buffer.size_free = 0
    for source, output in buffers.overwrites:
        by_name[source].mpi_buffer.size_free = 0  # the memory goes on under the other name
        by_name[output].mpi_buffer.size_alloc = 0
