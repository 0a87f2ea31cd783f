"""Lift Inductor's scheduler nodes into a problem: what fusion has left, with its exact buffers.

The nodes come after fusion and after torch's peak-memory pass; their order is the original one. Inputs and the output
are added, so that the problem has the same form as one lifted from FX.

What must keep its order are torch's own dependencies, and hazards found from the storages. torch chains all
collectives in the order of the FX graph by dependencies that carry no data; since a wait renames what it waits for,
each launch even comes after the wait of the one before, and nothing can overlap. These alone are left out; whatever
they may have covered besides is found again from the storages: read after write, write after read, write after write,
as they are in the order given.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._inductor.dependencies import WeakDep
from torch._inductor.utils import is_collective
from torch._inductor.virtualized import V

from overlap_sched.cost import CostModel, Roofline
from overlap_sched.cost.cluster import Cluster, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import nodes_of_ranks
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.calls import Communication, joined
from overlap_sched.fx.costs import Cost
from overlap_sched.fx.graphs import marks_of, module_of
from overlap_sched.fx.hazards import (
    Launch,
    add_hazards,
    blocking_hazards,
    chain_hazards,
    impurity_hazards,
    launch_chains,
    storage_hazards,
)
from overlap_sched.fx.lifting import with_company
from overlap_sched.fx.operators import Ordering
from overlap_sched.fx.reading import Reading, read_graph
from overlap_sched.inductor.kernels import Buffers, DataFlow, KernelCost, KernelCosts, read_buffers
from overlap_sched.inductor.private import members, runs
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.precedence import launched_on
from overlap_sched.report.words.graph import AssumedSize


@dataclass(frozen=True)
class LiftedKernels:
    """A problem and the scheduler nodes that it stands for.

    Attributes:
        problem: What is to be scheduled, in the ``runtime`` memory model.
        snodes: Per problem id its scheduler node; ``None`` for inputs and the output. A wait of several collectives has
            an id for each of them (:mod:`overlap_sched.fx.lifting`), a collective may have one more for its launch
            (:mod:`overlap_sched.fx.lifting`).
        notes: Counts, as in :class:`overlap_sched.fx.lifting.Lifted`; besides: ``buffers``; ``in_place``: kernels that
            write over an input in every order; ``comm_order``: torch's dependencies that keep collectives in the order
            of the FX graph, and each after the wait of the one before: these are what we are here to replace;
            ``bytes_failed``: torch's estimate of a kernel's bytes raised.
        buffers: What stands behind the names of buffers.
        sizes: Data-dependent sizes on which their bytes rest.
        undeclared: As of :class:`overlap_sched.fx.lifting.Lifted`.
    """

    problem: Problem
    snodes: tuple[Any | None, ...]
    notes: Mapping[str, int]
    buffers: Buffers
    sizes: tuple[AssumedSize, ...] = ()
    undeclared: Mapping[str, bool] = field(default_factory=dict)

    def reordered(self, order: Sequence[int]) -> list[Any]:
        """The scheduler nodes in an order of the problem, each once: where the last of its ids is."""
        listed = dict.fromkeys(self.snodes[v] for v in reversed(order))
        return [snode for snode in reversed(listed) if snode is not None]

    def order_of(self, snodes: Sequence[Any]) -> list[int]:
        """The order of the problem in which these scheduler nodes run."""
        ids: dict[int, list[int]] = {}
        for v, snode in enumerate(self.snodes):
            ids.setdefault(id(snode), []).append(v)
        *inputs, output = ids[id(None)]
        return [*inputs, *(v for snode in snodes for v in ids[id(snode)]), output]


def lift_kernels(
    snodes: Sequence[Any],
    *,
    cost: Cost | None = None,
    model: CostModel | None = None,
    ranks_per_node: int = 8,
    cluster: Cluster | None = None,
    name: str = "inductor",
) -> LiftedKernels:
    """Lift scheduler nodes, in the order in which they would run. They are only read.

    To be called where torch calls the passes of ``reorder_for_compute_comm_overlap_passes``. Arguments are those of
    :func:`overlap_sched.fx.lift`; of a fused kernel, ``cost`` adds up the times of the nodes that it came from.

    Raises:
        UnsupportedError: Something in the graph has an order that we do not know.
        CostError, ProblemError: As for :func:`overlap_sched.fx.lift`.
    """
    reading = read_graph(V.graph.graph)
    notes: Counter[str] = reading.notes
    buffers = read_buffers(snodes, reading, notes)
    model = model or (Roofline() if cluster is None else model_of(cluster))
    costs = KernelCosts(reading, model, cost, nodes_of_ranks(cluster, ranks_per_node), notes)
    flow = DataFlow(snodes, buffers, notes)
    after = dependencies(snodes, buffers, flow, reading, costs, notes)
    problem_inputs, numbers = _inputs(buffers)
    shift = len(problem_inputs)
    listed = [*problem_inputs, *_kernels(snodes, flow, after, reading, costs, numbers, shift)]
    listed.append(Node("output", Kind.OUTPUT, use=tuple(numbers[s] for s in flow.kept)))
    inside, outside = waits_inside(snodes, flow, reading, costs)
    ends = {at + shift: [u + shift for u in launches] for at, launches in (flow.ends | inside).items()}
    nodes, stands_for = with_company(listed, ends, [at + shift for at in outside], costs.groups, model)
    storages = tuple(Storage(buffers.nbytes[s], s not in buffers.maker and s not in flow.freeable) for s in numbers)
    used = {group for node in nodes for group in launched_on(node)}
    groups = {k: g for k, g in costs.groups.items() if k in used}
    beside = NO_CONTENTION if cluster is None else contention_of(cluster, groups)
    problem = Problem(name, nodes, storages, groups, "runtime", beside)
    snodes_of = [*[None] * shift, *snodes, None]
    told = {k: n for k, n in sorted(notes.items()) if n}
    nodes_of = tuple([snodes_of[v] for v in stands_for])
    return LiftedKernels(problem, nodes_of, told, buffers, reading.storages.assumed, reading.undeclared)


def _inputs(buffers: Buffers) -> tuple[list[Node], dict[str, int]]:
    """One input node per storage of the inputs; the number of every storage."""
    numbers = {name: s for s, name in enumerate([*buffers.inputs, *buffers.maker])}
    return [Node(name, Kind.INPUT, alloc=(numbers[name],)) for name in buffers.inputs], numbers


def _kernels(
    snodes: Sequence[Any],
    flow: DataFlow,
    after: Mapping[int, set[int]],
    reading: Reading,
    costs: KernelCosts,
    numbers: Mapping[str, int],
    shift: int,
) -> list[Node]:
    """A node per scheduler node; ``shift``: how many inputs are in front of them."""
    nodes = []
    for at, snode in enumerate(snodes):
        kind, launch = flow.kinds[at], flow.launch_of.get(at)
        cost_of = _cost(snode, kind, costs)
        group = None if cost_of.launch is None else costs.group_of[cost_of.launch]
        metas = costs.metas(snode)
        inside = communication(snode, reading, costs) if kind is Kind.COMPUTE else None
        nodes.append(
            Node(
                name=snode.get_name(),
                kind=kind,
                deps=tuple(sorted(u + shift for u in after[at])),
                alloc=tuple(numbers[s] for s in flow.made[at]),
                use=tuple(numbers[s] for s in flow.uses[at]),
                time_us=cost_of.time_us,
                op=cost_of.op,
                group=group,
                collective=None if launch is None else launch + shift,
                flops=cost_of.flops,
                bytes=cost_of.bytes,
                launches=() if inside is None else inside.kept,
                module=module_of(metas[0]) if metas else "",
                marks=tuple(sorted({mark for meta in metas for mark in marks_of(meta)})),
            )
        )
    return nodes


def _cost(snode: Any, kind: Kind, costs: KernelCosts) -> KernelCost:
    if kind is Kind.WAIT:
        return KernelCost("wait_tensor", 0, 0, 0.0)
    if kind is Kind.COLLECTIVE:
        return costs.of_collective(snode, next(m for m in members(snode) if is_collective(m.node)))
    return costs.of_compute(snode)


def dependencies(
    snodes: Sequence[Any],
    buffers: Buffers,
    flow: DataFlow,
    reading: Reading,
    costs: KernelCosts,
    notes: Counter[str],
) -> dict[int, set[int]]:
    """Per scheduler node, the positions of those that must run before it; all arguments are of the same graph.

    Counts ``comm_order``, ``hazard`` and ``point_to_point`` in ``notes``.

    Raises:
        UnsupportedError: A dependency names nothing, or comes later.
    """
    after = {at: _of_torch(at, snode, buffers, flow, notes) for at, snode in enumerate(snodes)}
    known = sum(map(len, after.values()))
    unseen = [flow.takes[at] if _writes_unseen(snode, reading, costs) else () for at, snode in enumerate(snodes)]
    writes = [(*known_writes, *more) for known_writes, more in zip(flow.writes, unseen, strict=True)]
    add_hazards(after, storage_hazards(zip(range(len(snodes)), flow.takes, writes, strict=True)))
    add_hazards(after, impurity_hazards(_impure(snodes, flow, reading, costs)))
    chains = launch_chains(_launches(snodes, flow, reading, costs))
    notes["point_to_point"] = sum(map(len, chains))
    add_hazards(after, chain_hazards(chains))
    add_hazards(after, blocking_hazards(_launch_steps(snodes, flow, reading, costs)))
    notes["hazard"] = sum(map(len, after.values())) - known
    return after


def _writes_unseen(snode: Any, reading: Reading, costs: KernelCosts) -> bool:
    """Tell whether a node writes something that it takes, although no schema says so: Inductor does not know."""
    return any(v in reading.unseen for one in members(snode) if one.is_extern() for v in costs.origins(one))


def _of_torch(at: int, snode: Any, buffers: Buffers, flow: DataFlow, notes: Counter[str]) -> set[int]:
    before: set[int] = set()
    chain = _comm_chain(snode) if flow.launches[at] else None
    for dep in snode.unmet_dependencies:
        u = buffers.producer.get(dep.name)
        if u is None:
            if dep.name in V.graph.removed_buffers or dep.name in V.graph.graph_inputs:
                continue
            raise UnsupportedError(
                f"{snode.get_name()!r} depends on {dep.name!r}, which nothing in this graph produces."
            )
        if u == at:
            continue
        if isinstance(dep, WeakDep) and dep.is_fake and chain == dep.mutating_buf:
            notes["comm_order"] += 1  # torch's pass for CUDA graphs does not keep to it either
            continue
        if u > at:
            raise UnsupportedError(f"{snode.get_name()!r} runs before {dep.name!r}, on which it depends.")
        before.add(u)
    return before


def _comm_chain(snode: Any) -> str | None:
    """The name by which ``decide_global_ordering_of_comms`` marks the dependencies that it gives to this collective."""
    return next(iter(snode.get_buffer_names()), None)


def _impure(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> Iterator[tuple[int, Ordering]]:
    """Yield what draws random numbers, has effects or communicates.

    Communication is ordered against barriers, and where the FX graph says that it has effects, among those.
    """
    for at, snode in enumerate(snodes):
        if flow.launches[at] or flow.waits[at]:
            found = [v for member in members(snode) if member.is_extern() for v in costs.origins(member)]
            effect = any(reading.ordering.get(v, Ordering.NONE) >= Ordering.EFFECT for v in found)
            yield at, Ordering.EFFECT if effect else Ordering.NONE
        elif (ordering := _ordering_of(snode, reading, costs)) is not Ordering.NONE:
            yield at, ordering


def _ordering_of(snode: Any, reading: Reading, costs: KernelCosts) -> Ordering:
    ordering = Ordering.NONE
    for member in members(snode):
        if member.node is None or not (member.is_extern() or member.has_side_effects()):
            continue
        if getattr(member.node, "subgraphs", None) or getattr(member.node, "subgraph", None):
            return Ordering.BARRIER
        ordering = max([ordering, *(reading.ordering.get(v, Ordering.NONE) for v in costs.origins(member))])
        if member.has_side_effects():
            ordering = max(ordering, Ordering.EFFECT)
    if ordering is Ordering.FENCE:
        raise UnsupportedError(
            f"{snode.get_name()!r} changes the mode in which later nodes run (streams, autograd mode)."
        )
    return ordering


def _launches(snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts) -> Iterator[Launch]:
    for at, launches in enumerate(flow.launches):
        origins = [v for member in members(snodes[at]) for v in costs.origins(member)] if launches else []
        comms = [(costs.group_of[v], reading.traits[v].comm) for v in origins if v in costs.group_of]
        if comms:
            yield Launch(at, comms[-1][0], any(comm is not None and comm.point_to_point for _, comm in comms))


def _launch_steps(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> list[tuple[int, tuple[str, ...], bool]]:
    """As :func:`overlap_sched.fx.hazards.launch_steps`, of scheduler nodes."""
    launches = {launch.at: (launch.group,) for launch in _launches(snodes, flow, reading, costs)}
    steps: list[tuple[int, tuple[str, ...], bool]] = []
    for at, snode in enumerate(snodes):
        inside = communication(snode, reading, costs)
        if at in launches:
            steps.append((at, launches[at], False))
        elif inside is not None and (groups := inside.groups if launches else inside.kept):
            steps.append((at, groups, True))
    return steps


def waits_inside(
    snodes: Sequence[Any], flow: DataFlow, reading: Reading, costs: KernelCosts
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the nodes whose sub-graphs wait, with the launches that they wait for; and those that wait for others."""
    every = [[v for member in members(snode) if runs(member) for v in costs.origins(member)] for snode in snodes]
    launched = {v: at for at, origins in enumerate(every) if flow.launches[at] for v in origins}
    ends, outside = dict[int, list[int]](), list[int]()
    for at, origins in enumerate(every):
        inside = [v for v in origins if v in reading.inner and flow.kinds[at] is Kind.COMPUTE]
        if any(v in reading.outside for v in inside):
            outside.append(at)
        if found := [launched[u] for v in inside for u in reading.ends.get(v, ()) if u in launched]:
            ends[at] = found
    return ends, outside


def communication(snode: Any, reading: Reading, costs: KernelCosts) -> Communication | None:
    """Return what a scheduler node communicates, or may, that is no collective on a stream of its own."""
    origins = [v for member in members(snode) if runs(member) for v in costs.origins(member)]
    found = [reading.communicates[v] for v in origins if v in reading.communicates]
    return joined(found) if found else None
