"""What Inductor's scheduler nodes are: their storages, what they read and write, and what they cost.

Inductor has many names for one piece of memory: a mutation renames what it writes (a wait its collective's output),
a view and a part of a concatenation live in another's storage, a kernel may write over an input that is not needed
any more. And some names have no memory: a buffer that only its own fused kernel reads stays in registers.

An extern kernel costs what its FX node costs, and so does a collective. A fused kernel does not write what stays inside
it, so its bytes are those of the buffers that it reads and writes, and its operations those of the nodes that it was
made for.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import sympy
from torch._inductor import config, ir, scheduler
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.wrapper import can_match_buffer_size
from torch._inductor.comms import is_async_collective
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.utils import contains_collective, contains_wait, is_collective, is_nonfreeable_buffers, is_wait
from torch._inductor.virtualized import V

from overlap_sched.cost import Compute, CostModel
from overlap_sched.cost.model import ask_model
from overlap_sched.cost.placement import Nodes
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.costs import Cost, Costs, Pricing
from overlap_sched.fx.lifting import groups_of
from overlap_sched.fx.operators import Role
from overlap_sched.fx.reading import Reading
from overlap_sched.fx.sizes import Sizes
from overlap_sched.problem import Kind


def members(node: Any) -> Sequence[Any]:
    """The unfused nodes in a scheduler node: of fused, foreach and grouped ones, nested ones too."""
    parts = node.get_nodes()
    return parts if len(parts) == 1 and parts[0] is node else [one for part in parts for one in members(part)]


def runs(member: Any) -> bool:
    """Tell whether an unfused node runs an operator as it is, a collective or a sub-graph: it may communicate, then.

    One output of several is a node of its own, which runs nothing.
    """
    node = member.node
    return node is not None and member.is_extern() and not isinstance(node, ir.MultiOutput) and not is_wait(node)


def size_of(size: Any) -> sympy.Expr:
    """An expression in the symbols of the graph; torch gives a plain 0 for a tensor of no elements."""
    return V.graph.sizevars.remove_precomputed_replacements(sympy.sympify(size))


Roots = tuple[str, ...]
"""Names of the storages that hold a buffer: that of the buffer or input that made it."""
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
        if name not in self.roots:
            raise UnsupportedError(f"a kernel reads {name!r}, neither a buffer of this graph nor one of its inputs.")
        return self.roots[name]


def read_buffers(snodes: Sequence[Any], reading: Reading, notes: Counter[str]) -> Buffers:
    """Read all buffers of a graph; ``snodes`` in any order that can run."""
    buffers = Buffers(reading.storages.sizes(V.graph.sizevars.shape_env))
    _read_inputs(buffers, reading)
    buffers.producer = {out.get_name(): at for at, snode in enumerate(snodes) for out in snode.get_outputs()}
    for at, snode in enumerate(snodes):
        buffers.internal |= _internal_names(snode)
        for member in members(snode):
            for out in member.get_outputs():
                _read_output(buffers, at, out)
                notes["buffers"] += 1
            if isinstance(member, scheduler.SchedulerNode):
                notes["in_place"] += _read_in_place(buffers, at, member)
    return buffers


def _read_inputs(b: Buffers, reading: Reading) -> None:
    graph, by_storage = V.graph, dict[int, str]()
    if graph.is_backward and graph.bw_donated_idxs is not None:
        b.held = {name for i, name in enumerate(graph.graph_input_names) if i not in graph.bw_donated_idxs}
    b.roots = dict.fromkeys((*graph.graph_inputs, *graph.torchbind_constants), ())  # sizes, random states, and others
    placeholders = (v for v, node in enumerate(reading.nodes) if node.op == "placeholder")
    for name, v in zip(graph.graph_input_names, placeholders, strict=False):
        raw = reading.outs[v]
        b.roots[name] = tuple(by_storage.setdefault(s, name) for s in raw)
        if raw and b.roots[name] == (name,):
            b.nbytes[name] = reading.storages.nbytes[raw[0]]
    for name, constant in graph.constants.items():
        b.roots[name] = (name,)
        b.nbytes[name] = constant.untyped_storage().nbytes()
    b.inputs = list(b.nbytes)


def _internal_names(snode: Any) -> set[str]:
    """Buffers that never leave a fused kernel."""
    names, groups = set[str](), snode.snodes if isinstance(snode, scheduler.GroupedSchedulerNode) else [snode]
    for group in groups:
        if isinstance(group, scheduler.FusedSchedulerNode):
            own = {one.get_name() for one in members(group)}
            removable = group.scheduler.can_buffer_be_removed_through_fusion
            names.update(out.get_name() for out in group.get_outputs() if out.users and removable(out.get_name(), own))
    return names


def _read_output(b: Buffers, at: int, out: Any) -> None:
    name, node = out.get_name(), out.node
    shared, layout = [*out.get_mutations(), *out.get_aliases()], getattr(node, "layout", None)
    if isinstance(layout, ir.NonOwningLayout):
        whole = layout.view.get_name()
        shared.append(whole)
        if whole not in b.roots:  # a part of a concatenation is written before the whole is named
            _allocate(b, at, whole, V.graph.get_buffer(whole))
    nowhere = name in b.internal or name in V.graph.removed_buffers
    if shared:
        b.roots[name] = _distinct(root for other in shared for root in b.of(other))
    elif nowhere or isinstance(layout, ir.NoneLayout | ir.MultiOutputLayout):
        b.roots[name] = ()
    elif isinstance(node, ir.MultiOutput):
        container = node
        while isinstance(container, ir.MultiOutput):
            container = container.inputs[0]
        _allocate(b, b.producer[container.get_name()], name, node)
    elif name not in b.roots:
        _allocate(b, at, name, node)


def _allocate(b: Buffers, at: int, name: str, node: Any) -> None:
    layout = node.get_layout()
    key = (*V.graph.get_allocation_size(node), *layout.stride, layout.offset)
    if key not in b.elements:  # layers are alike, and torch computes with symbols
        b.elements[key] = b.sizes.largest(size_of(V.graph.get_allocation_storage_size(node)))
    b.nbytes[name] = b.elements[key] * node.get_dtype().itemsize
    b.roots[name], b.maker[name] = (name,), at


def _read_in_place(b: Buffers, at: int, member: Any) -> int:
    """Where a kernel writes its output over an input **in every order**, both are one storage; returns how many are.

    The conditions are those of ``BaseSchedulerNode.decide_inplace_update``, with one difference: of the input's other
    users, all must be ancestors of this kernel; torch also asks which have run already, which an order decides. What
    depends on the order counts as two storages.
    """
    if not config.inplace_buffers or not V.graph.has_feature(member.get_device(), BackendFeature.INPLACE_BUFFERS):
        return 0
    taken: set[str] = set()
    for out in member.get_outputs():
        name = out.get_name()
        if b.roots.get(name) != (name,) or name in b.internal or not out.node.should_allocate():
            continue
        for read in member.read_writes.reads:
            source = None if read.name in taken else member.scheduler.name_to_buf.get(read.name)
            if source is None or not _overwritable(member, source) or len(b.of(read.name)) != 1:
                continue
            (root,) = b.of(read.name)
            if root in b.maker and can_match_buffer_size(source.node, out.node):
                taken.add(read.name)
                b.roots[name] = (root,)
                del b.nbytes[name], b.maker[name]
                b.in_place.setdefault(at, []).append(root)
                b.overwrites.append((read.name, name))
                break
    return len(taken)


def _overwritable(member: Any, source: Any) -> bool:
    """Tell whether this kernel may write over a buffer that it reads, whatever the order."""
    users = [user for user in source.users if user.node.get_name() not in member.ancestors]
    accesses = {access for access in member.read_writes.reads_and_writes() if access.name == source.get_name()}
    return (
        V.graph.wrapper_code.can_reuse(source, member)
        and len(users) == 1
        and users[0].node is member
        and users[0].can_inplace
        and not source.node.get_inputs_that_alias_output()
        and not isinstance(source.defining_op, scheduler.NopKernelSchedulerNode)
        and not isinstance(source.node.get_output_spec(), _KEPT)
        and len(accesses) == 1
    )


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


class DataFlow:
    """The data flow of a graph, per position of its scheduler nodes.

    Attributes:
        launches, waits: Whether a node launches a collective (one that blocks, too), or waits for one.
        kinds: Collective, wait or compute.
        takes: Storages that a node reads; of a wait for what an earlier graph has launched, all inputs: that may read
            any of them.
        writes: Storages that it writes and did not make: mutations, what it writes over, a wait's output.
        uses: Storages that must live while it runs; of a wait, those of its collective.
        ends: Per wait, the positions of all collectives that it waits for, the last one last; a wait is not in it where
            they were launched elsewhere.
        made: Storages that it allocates.
        freeable: Input storages that die after their last use: saved activations of a backward graph, by the names that
            AOTAutograd gives (``is_nonfreeable_buffers``), unless the graph writes them or others hold them on.
        kept: Storages that live to the end: outputs, and what collectives without a wait still use.
    """

    def __init__(self, snodes: Sequence[Any], buffers: Buffers, notes: Counter[str]) -> None:
        self.launches = [contains_collective(snode) for snode in snodes]
        self.waits = [contains_wait(snode) for snode in snodes]
        self.kinds = [_kind_of(*each) for each in zip(snodes, self.launches, self.waits, strict=True)]
        self.takes: list[tuple[str, ...]] = []
        self.writes: list[tuple[str, ...]] = []
        self.uses: list[tuple[str, ...]] = []
        self.ends: dict[int, tuple[int, ...]] = {}
        self.freeable: set[str] = set()
        self.made: defaultdict[int, list[str]] = defaultdict(list)
        for s, maker in buffers.maker.items():
            self.made[maker].append(s)
        in_flight: dict[str, int] = {}
        inputs, removed = frozenset(buffers.inputs), V.graph.removed_buffers
        for at, snode in enumerate(snodes):
            self._read(at, snode, buffers, inputs, removed)
            if self.kinds[at] is Kind.COLLECTIVE:
                in_flight.update(dict.fromkeys([*self.writes[at], *self.made[at]], at))
            elif self.kinds[at] is Kind.WAIT:
                self._wait(at, in_flight, buffers.inputs)
        self.freeable.difference_update(s for roots in self.writes for s in roots)
        waited = {launch for launches in self.ends.values() for launch in launches}
        never_waited = [at for at, kind in enumerate(self.kinds) if kind is Kind.COLLECTIVE and at not in waited]
        notes["collective_without_wait"] = len(never_waited)
        # a gradient that is None, or a size: outputs, but no buffers
        no_buffers = (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)
        tensors = (out for out in V.graph.graph_outputs if not isinstance(out, no_buffers))
        outputs = (s for out in tensors for s in buffers.of(out.get_name()))
        held = (s for at in never_waited for s in (*self.uses[at], *self.made[at]))
        self.kept = _distinct([*outputs, *held])

    def _read(self, at: int, snode: Any, buffers: Buffers, inputs: Collection[str], removed: Collection[str]) -> None:
        takes: list[str] = []
        for dep in snode.read_writes.reads:
            if isinstance(dep, WeakDep) and dep.is_fake:
                continue
            roots = () if dep.name in removed else buffers.of(dep.name)
            takes += roots
            if dep.name in inputs and dep.name not in buffers.held and not is_nonfreeable_buffers(dep):
                self.freeable.update(roots)
        writes = list(buffers.in_place.get(at, ()))
        shared: list[str] = []
        for member in members(snode):
            for out in member.get_outputs():
                for name in out.get_mutations():
                    writes += buffers.of(name)
                shared += (s for s in buffers.roots[out.get_name()] if buffers.maker.get(s) != at)
        writes = [s for s in writes if buffers.maker.get(s) != at]
        self.takes.append(_distinct(takes))
        self.writes.append(_distinct(writes))
        self.uses.append(_distinct([*takes, *shared, *self.writes[-1]]))

    def _wait(self, at: int, in_flight: dict[str, int], inputs: Sequence[str]) -> None:
        if not all(s in in_flight for s in self.writes[at]):
            self.takes[at] = _distinct([*self.takes[at], *inputs])
        if launches := sorted({in_flight[s] for s in self.writes[at] if s in in_flight}):
            self.ends[at] = tuple(launches)
            self.uses[at] = _distinct([*self.uses[at], *(s for launch in launches for s in self.uses[launch])])


def _kind_of(snode: Any, launches: bool, waits: bool) -> Kind:
    """Return the kind of a scheduler node.

    Raises:
        UnsupportedError: Several nodes were grouped, and communication is among them.
    """
    if isinstance(snode, scheduler.GroupedSchedulerNode) and (launches or waits):
        raise UnsupportedError(
            f"{snode.get_name()!r} groups communication with other nodes. Another pass has grouped them: "
            "turn that pass off."
        )
    if launches and is_async_collective(snode):
        return Kind.COLLECTIVE
    return Kind.WAIT if waits else Kind.COMPUTE


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


class KernelCosts:
    """Costs of the scheduler nodes of one graph.

    Attributes:
        groups: The process groups of its collectives, by name.
        group_of: Per FX collective (its position in the reading), the name of its group.
    """

    def __init__(
        self, reading: Reading, model: CostModel, cost: Cost | None, nodes: Nodes, notes: Counter[str]
    ) -> None:
        self._reading, self._model, self._notes = reading, model, notes
        self._cost = None if cost is None else cache(cost)
        self._index = {node: v for v, node in enumerate(reading.nodes)}
        self._roles = [traits.role for traits in reading.traits]
        comms = [v for v, role in enumerate(self._roles) if role in (Role.LAUNCH, Role.BLOCKING)]
        self.group_of, placements = groups_of(reading, comms, {}, {}, nodes)
        self.groups = {name: placement.group for name, placement in placements.items()}
        self._fx: Costs = Pricing(model, self.groups).costs(reading, self._cost)

    def origins(self, member: Any) -> list[int]:
        """Positions of the FX nodes that a scheduler node came from, in the order of the graph."""
        return sorted({self._index[node] for node in getattr(member.node, "origins", ()) or () if node in self._index})

    def metas(self, snode: Any) -> list[Mapping[str, Any]]:
        """The metadata of the FX nodes that a scheduler node came from, in the order of the graph."""
        found = {v for member in members(snode) if member.node is not None for v in self.origins(member)}
        return [self._reading.nodes[v].meta for v in sorted(found)]

    def of(self, snode: Any, kind: Kind) -> dict[str, Any]:
        """Return ``op``, ``flops``, ``bytes``, ``time_us`` and ``group`` of a problem's node, where they are not none.

        Raises:
            UnsupportedError: It launches a collective that came from no FX collective.
        """
        if kind is not Kind.COLLECTIVE:
            return self._of_compute(snode) if kind is Kind.COMPUTE else {"op": "wait_tensor"}
        launch = next(member for member in members(snode) if is_collective(member.node))
        found = [v for v in self.origins(launch) if self._roles[v] is Role.LAUNCH]
        if len(found) != 1:
            raise UnsupportedError(
                f"collective {snode.get_name()!r} comes from {len(found)} collectives of the FX graph, not from one."
            )
        (v,), costs = found, self._fx
        comm = self._reading.traits[v].comm
        cost = {"bytes": costs.bytes[v], "time_us": costs.prices[v].time_us, "group": self.group_of[v]}
        return {"op": comm.op if comm else "", **cost}

    def _of_compute(self, snode: Any) -> dict[str, Any]:
        parts = [member for member in members(snode) if member.node is not None and not is_wait(member.node)]
        origins = list(dict.fromkeys(v for part in parts for v in self.origins(part)))
        traits = self._reading.traits
        op = "+".join(dict.fromkeys(traits[v].op for v in origins if not traits[v].free))
        # one output of a kernel that has several, whose cost the kernel has; a whole that its parts have written
        nothing = [isinstance(x.node, ir.MultiOutput) or isinstance(x, scheduler.NopKernelSchedulerNode) for x in parts]
        if parts and all(nothing):
            return {"op": op}
        extern = len(parts) == 1 and (snode.is_extern() or any(self._roles[v] is Role.BLOCKING for v in origins))
        chosen = self._priced_for_extern(parts[0], origins) if extern else self._exact(parts)
        flops = sum(self._fx.flops[v] for v in chosen)
        if extern:
            nbytes = sum(self._fx.bytes[v] for v in chosen)
            us = sum(self._fx.prices[v].time_us for v in chosen)
        else:
            nbytes = self._moved(snode)
            asked = [self._cost(self._reading.nodes[v]) for v in origins if self._cost and self._roles[v] is None]
            given = [us for us in asked if us is not None]
            us = sum(given) if given else ask_model(self._model.compute_us, Compute(op, flops, nbytes, "fused"))
        return {"op": op, "flops": flops, "bytes": nbytes, "time_us": us}

    def _priced_for_extern(self, part: Any, origins: Sequence[int]) -> list[int]:
        """Return what it calls, or, where torch does not say what that is, its last origin: others made its inputs."""
        called = getattr(part.node, "op_overload", None)
        exact = [v for v in origins if called is not None and self._reading.nodes[v].target is called]
        exact = exact or [v for v in self._exact([part]) if self._fx.prices[v].time_us > 0.0]
        ours = [v for v in origins if self._roles[v] in (None, Role.BLOCKING) and self._fx.prices[v].time_us > 0.0]
        return [v for v in exact if self._roles[v] in (None, Role.BLOCKING)] or ours[-1:]

    def _exact(self, parts: Sequence[Any]) -> list[int]:
        """The FX node that each part computes, where torch says so."""
        nodes = [getattr(part.node, "origin_node", None) for part in parts]
        return list(dict.fromkeys(self._index[node] for node in nodes if node in self._index))

    def _moved(self, snode: Any) -> int:
        """Bytes of the buffers that a kernel reads and writes; of those that are indexed by data, what is picked."""
        sizes = self._reading.storages.sizes(V.graph.sizevars.shape_env)
        # torch's own estimate where, before torch 2.13, some of what ours asks has other names
        for estimate in (partial(_moved_and_picked, snode, sizes), snode.get_read_write_buffers_sizes):
            with suppress(Exception):  # a wrong cost must not stop a pass
                return max(0, int(estimate()))
        self._notes["bytes_failed"] += 1
        return 0


def _moved_and_picked(snode: Any, sizes: Sizes) -> int:
    """Torch counts a buffer that is indexed by data as a whole; this counts what is picked out of it or written to it.

    Data-dependent sizes are 0 for torch; here they have their hints.
    A kernel that writes into a buffer that exists depends on all of it, but reads none of it by that.
    """
    deps: dict[str, list[Any]] = {}
    for dep in (*snode.read_writes.reads, *snode.read_writes.writes):
        if isinstance(dep, MemoryDep):
            deps.setdefault(dep.name, []).append(dep)
    written_into = {name for buffer in snode.get_outputs() for name in buffer.get_mutations()}
    total = 0
    for name, nbytes in snode.get_read_write_buffer_accesses(include_reads=True, include_writes=True).items():
        known = deps.get(name, [])
        if not known and name in written_into:
            continue
        if known and all(dep.is_indirect() for dep in known):
            picked = sum([sizes.hint(_elements(dep)) for dep in known])
            nbytes = min(nbytes, picked * V.graph.get_dtype(name).itemsize)
        elif any(sizes.unknown(_elements(dep)) for dep in known):
            nbytes = max([sizes.hint(_elements(dep)) for dep in known]) * V.graph.get_dtype(name).itemsize
        total += max(0, nbytes)
    return int(total)


def _elements(dep: Any) -> Any:
    return size_of(sympy.Mul(*dep.size))
