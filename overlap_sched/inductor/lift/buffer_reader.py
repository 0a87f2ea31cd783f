"""Read the buffers of all scheduler nodes: what each name stands for."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from overlap_sched.fx.reading import Reading
from overlap_sched.inductor.lift.buffers import Buffers, extent
from overlap_sched.inductor.lift.in_place import read_in_place
from overlap_sched.inductor.lift.saved import held_names
from overlap_sched.inductor.private import FusedSchedulerNode, GroupedSchedulerNode, SchedulerNode, V, ir, members


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
                read_in_place(buffers, at, member, internal, notes)
    return buffers


def _read_inputs(b: Buffers, reading: Reading) -> None:
    graph, storages = V.graph, reading.storages
    by_storage: dict[int, str] = {}
    b.held = held_names(graph)
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
    key = extent(node)
    elements = b.elements.get(key)
    if elements is None:  # layers are alike, and torch computes with symbols
        storage = V.graph.sizevars.remove_precomputed_replacements(V.graph.get_allocation_storage_size(node))
        elements = b.elements[key] = b.sizes.largest(storage)
    b.nbytes[name] = elements * node.get_dtype().itemsize
    b.roots[name] = (name,)
    b.maker[name] = at
