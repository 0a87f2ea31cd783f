"""Lift Inductor's scheduler nodes into a problem: what fusion has left, with its exact buffers.

The nodes come after fusion and after torch's peak-memory pass; their order is the original one. Inputs and the output
are added, so that the problem has the same form as one lifted from FX.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlap_sched.cost import CostModel, Roofline
from overlap_sched.cost.cluster import Cluster, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import nodes_of_ranks
from overlap_sched.fx.costs import Cost
from overlap_sched.fx.graphs import marks_of, module_of
from overlap_sched.fx.lifting import launch_times, one_collective_each, with_launches
from overlap_sched.fx.reading import Reading, read_graph
from overlap_sched.inductor.lift.buffers import Buffers, read_buffers
from overlap_sched.inductor.lift.costs import KernelCost, KernelCosts
from overlap_sched.inductor.lift.data_flow import DataFlow
from overlap_sched.inductor.lift.dependencies import communication, dependencies, waits_inside
from overlap_sched.inductor.private import V, is_collective, members
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
        sizes: Sizes that only the data knows on which their bytes rest.
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
    waited, waiting = one_collective_each(listed, ends, [at + shift for at in outside])
    nodes, launching = with_launches(waited, launch_times(waited, costs.groups, model))
    stands_for = [waiting[v] for v in launching]
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
