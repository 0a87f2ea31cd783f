"""Lift an FX graph into a problem: data flow, hazards, storages, times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path

from torch import fx

from overlap_sched.cost import CostModel, Price, Roofline
from overlap_sched.cost.cluster.contention import contention_of
from overlap_sched.cost.cluster.cost_model import model_of
from overlap_sched.cost.cluster.description import Cluster, MeshDimension
from overlap_sched.cost.cluster.file import cluster_given
from overlap_sched.cost.cluster.placement import Placement, nodes_of_ranks
from overlap_sched.fx.collectives import Role
from overlap_sched.fx.company import launch_times, one_collective_each, with_launches
from overlap_sched.fx.costs import Cost, Costs, Fusion, costs_of
from overlap_sched.fx.graph_hazards import graph_hazards
from overlap_sched.fx.groups import carried_facts, groups_of
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.inputs import Which, kept_inputs
from overlap_sched.fx.memory import DeviceFilter, Memory, memory_of
from overlap_sched.fx.pins import marks_of, module_of
from overlap_sched.fx.reader import read_graph
from overlap_sched.fx.reading import Reading
from overlap_sched.fx.reordering import graph_of
from overlap_sched.fx.sizes import carried_sizes
from overlap_sched.problem import Group, Kind, MemoryModel, Node, Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.node import OF_HOST
from overlap_sched.problem.precedence import launched_on
from overlap_sched.report.words.sizes import AssumedSize
from overlap_sched.transform.host import OUT

HOST = {OUT: Group(1, True)}
"""The stream of copies to and from the host, as a group."""


@dataclass(frozen=True)
class Lifted:
    """A problem and the FX nodes that it stands for.

    Attributes:
        problem: What is to be scheduled.
        nodes: Per problem id, its FX node: the graph's own order. A wait of several collectives has an id for each of
            them (:mod:`overlap_sched.fx.company`).
        notes: How often something was not known or not usual, by name:

            - ``unknown_op``: kept as a barrier; ``fence``: a node that nothing may cross;
              ``hazard``: dependencies that are not data;
            - ``no_val``: a node without ``meta["val"]``, thought to alias all that it takes (a launch: to give
              something new of 0 bytes);
            - ``undeclared_alias``: an operator that returns what its schema calls new, thought to write it;
            - ``no_storage``: a tensor without storage, counted as 0 bytes; ``size_without_hint``: a size that
              depends on data; ``flops_failed``: a formula raised;
            - ``unknown_communication``: an operator of a family of collectives that is not known, or of another library
              that takes a process group, taken as one that blocks; ``custom_op``: another one of another library, or a
              call that is not known, which may communicate;
            - ``wait_outside``: a wait for a collective that this graph does not launch;
              ``collective_without_wait``; ``group_size_guessed``;
              ``point_to_point``: sends and receives and who shares their group, which keep their order.
        prices: Per problem id, its time, where that comes from, and what limits it.
        placements: Per process group, where it is, and what was assumed for that.
        undeclared: Operators of other libraries of which nothing was said (:func:`overlap_sched.declare_operator`), and
            whether they are taken for communication.
        devices: Types of those that its tensors are on: ``"cuda"``.
        model: What has priced it; it prices what rewrites make, too.
        sizes: Sizes that only the data knows on which the storages' bytes rest.
    """

    problem: Problem
    nodes: tuple[fx.Node, ...]
    notes: Mapping[str, int]
    prices: tuple[Price, ...]
    placements: Mapping[str, Placement]
    devices: frozenset[str]
    model: CostModel
    sizes: tuple[AssumedSize, ...] = ()
    undeclared: Mapping[str, bool] = field(default_factory=dict)

    def reordered(self, order: Sequence[int]) -> list[fx.Node]:
        """The FX nodes in an order of the problem, each once: where the last of its ids is."""
        return list(dict.fromkeys(self.nodes[v] for v in reversed(order)))[::-1]


def lift(
    gm: fx.GraphModule | fx.Graph,
    *,
    memory_model: MemoryModel = "runtime",
    cost: Cost | None = None,
    parameters: Which | None = None,
    donated: Which | None = None,
    name: str | None = None,
    model: CostModel | None = None,
    groups: Mapping[str, Group] | None = None,
    ranks_per_node: int = 8,
    cluster: Cluster | str | Path | None = None,
    mesh: Sequence[MeshDimension] = (),
    contention: bool = True,
    device_filter: DeviceFilter | None = None,
    fusion: Fusion = "none",
) -> Lifted:
    """Lift a graph whose nodes have ``meta["val"]``. The graph is only read.

    Args:
        gm: The graph, after AOTAutograd (aten operators).
        memory_model: See :data:`overlap_sched.problem.MemoryModel`.
        cost: Microseconds of a node, or ``None`` to leave it to ``model``.
        parameters: Inputs that are never freed, by name or predicate.
        donated: Inputs that may be freed after their last use. The others are classified by name, see
            :func:`overlap_sched.fx.inputs.kept_inputs`.
        name: Name of the problem.
        model: Cost model; an H100 in nodes of eight by default.
        groups: Sizes and places of process groups by name, where they are not those of this process. (A loaded dump
            carries its own.)
        ranks_per_node: Consecutive ranks that share a node; a cluster has its own.
        cluster: Where the graph is to run: a file, or the name of one that is shipped (``"dgx-h100"``). It prices all
            that ``cost`` and ``model`` leave open, places process groups, and says what they cost each other.
        mesh: Dimensions of the device mesh, outermost first, for groups whose ranks are not known; by default the
            cluster's.
        contention: Whether the cluster's contention goes into the problem.
        device_filter: Which storages count, by device type; by default all that are not on a CPU, or all where all are.
        fusion: ``"inductor"`` where TorchInductor will compile the graph: nodes are priced by the kernels that it would
            make of them. The graph stays one of single nodes. See :mod:`overlap_sched.cost.fusion.kernels`.

    Raises:
        CostError, OptionsError, ProblemError: The arguments do not fit the graph.
        CostError: The cluster is none, or a process group does not fit it.
    """
    graph = graph_of(gm)
    reading = read_graph(graph)
    kept = kept_inputs([n for n in reading.nodes if n.op == "placeholder"], memory_model, parameters, donated)
    on = None if cluster is None else cluster_given(cluster)
    machines = nodes_of_ranks(on, ranks_per_node, mesh)
    comms = [v for v, t in enumerate(reading.traits) if t.role in (Role.LAUNCH, Role.BLOCKING)]
    name_of, placements = groups_of(reading, comms, HOST | dict(groups or {}), carried_facts(graph), machines)
    group_table = {group: placement.group for group, placement in placements.items()}
    after = graph_hazards(reading, name_of)
    memory = memory_of(reading, memory_model, kept, device_filter)
    model = model or (Roofline() if on is None else model_of(on))
    costs = costs_of(reading, model, cost, group_table, fusion, after)
    found = _nodes(reading, after, memory, costs, name_of)
    listed, waiting = one_collective_each(found, reading.ends, reading.outside)
    nodes, launching = with_launches(listed, launch_times(listed, group_table, model))
    stands_for = [waiting[v] for v in launching]
    used = {group for node in nodes for group in launched_on(node)}
    used_groups = {k: g for k, g in group_table.items() if k in used}
    beside = NO_CONTENTION if on is None or not contention else contention_of(on, used_groups)
    name = name or (type(gm).__name__ if isinstance(gm, fx.GraphModule) else "graph")
    problem = Problem(name, nodes, memory.storages, used_groups, memory_model, beside)
    _count(reading, after)
    told = {k: n for k, n in sorted(reading.notes.items()) if n}
    priced = zip(nodes, stands_for, strict=True)
    prices = tuple([costs.prices[v] if node.op not in OF_HOST else Price(node.time_us, "table") for node, v in priced])
    sizes = (*reading.storages.assumed, *carried_sizes(graph))
    fx_nodes = tuple([reading.nodes[v] for v in stands_for])
    on_devices = frozenset(reading.storages.device)
    return Lifted(problem, fx_nodes, told, prices, placements, on_devices, model, sizes, reading.undeclared)


LIFTING = tuple([name for name in signature(lift).parameters if name not in ("gm", "memory_model")])
"""What functions that lift a graph pass on to :func:`lift`."""


def _nodes(
    reading: Reading,
    after: Mapping[int, set[int]],
    memory: Memory,
    costs: Costs,
    group_of: Mapping[int, str],
) -> tuple[Node, ...]:
    nodes = []
    for v, node in enumerate(reading.nodes):
        kind = _kind(reading, v)
        comm = reading.traits[v].comm if kind is Kind.COLLECTIVE else None
        inputs = reading.inputs[v]
        deps = tuple(sorted({*inputs, *after[v]})) if v in after else inputs
        if kind is Kind.OUTPUT:  # values first, as they are listed
            deps = tuple(dict.fromkeys((*inputs, *deps)))
        nodes.append(
            Node(
                name=node.name,
                kind=kind,
                deps=deps,
                alloc=memory.alloc[v],
                use=memory.use[v],
                time_us=costs.prices[v].time_us,
                op=reading.traits[v].op if comm is None else comm.op,
                group=None if comm is None else group_of[v],
                collective=reading.launch_of.get(v),
                flops=costs.flops[v],
                bytes=costs.bytes[v],
                launches=reading.communicates[v].kept if v in reading.communicates else (),
                module=module_of(node.meta),
                marks=marks_of(node.meta),
            )
        )
    return tuple(nodes)


_KIND = {"placeholder": Kind.INPUT, "get_attr": Kind.INPUT, "output": Kind.OUTPUT}


def _kind(reading: Reading, v: int) -> Kind:
    role = reading.traits[v].role
    if role is None or role is Role.BLOCKING:
        return _KIND.get(reading.nodes[v].op, Kind.COMPUTE)
    return Kind.WAIT if role is Role.WAIT else Kind.COLLECTIVE


def _count(reading: Reading, after: Mapping[int, set[int]]) -> None:
    waited = {launch for launches in reading.ends.values() for launch in launches}
    reading.notes["collective_without_wait"] = sum(v not in waited for v in reading.launches)
    reading.notes["hazard"] = sum(len(before.difference(reading.inputs[v])) for v, before in after.items())
    reading.notes["fence"] = sum(ordering is Ordering.FENCE for ordering in reading.ordering.values())
