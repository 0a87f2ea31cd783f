"""Lift an FX graph into a problem: data flow, hazards, storages, groups, times.

Some nodes of a problem stand for no node of the graph by themselves: further waits, launches, finishes.
A problem has one collective per wait, and only waits wait. torch 2.15 has ``wait_tensors``: the compute stream stands
still until all collectives that its tensors come from have finished. Mostly that is one collective with several
outputs. Where there are several, the wait gets company: one more wait for each of the others, in front of it, which
hold no memory and take no time. A replay stalls at each of them in turn, and so until the last has finished; in
any order it predicts at least the time that the program takes, and exactly that where nothing runs between them. What
communicates on the compute stream has them, too, as it runs when the streams of its groups are free, behind all that
was launched there; and so has a sub-graph that waits for what it is given::

    compute       | mm |.........|part|== all_reduce in a sub-graph ==|
    fsdp               |== gather ====|

On a GPU the host launches ahead of time. On a CPU the thread that computes launches, too, and over gloo that takes it
50 to 1,000 us. A cost model that knows so (``launch_us``) gives each collective a *launch node*: a compute node in
front of it, which holds no memory and takes that long::

    compute       | mm |launch|     mm      |finish|wait|
    fsdp                      |== gather ===|

A wait for a collective that is done takes time, too (gloo copies what a reduce_scatter has summed up). Where the model
knows that (``finish_us``), a *finish node* stands in front of the wait. Without such a model no node is added.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch import fx

from overlap_sched.cost import Collective, CostModel, Price, Roofline
from overlap_sched.cost.cluster import Cluster, MeshDimension, cluster_given, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.model import FinishingModel, LaunchingModel
from overlap_sched.cost.placement import DataflowNode, Facts, Nodes, Placement, nodes_of_ranks, place, sharding_groups
from overlap_sched.errors import OptionsError
from overlap_sched.fx.calls import GROUPS_KEY, call_of, live_ranks, name_and_group
from overlap_sched.fx.costs import Cost, Costs, Fusion, Pricing
from overlap_sched.fx.graphs import graph_of, marks_of, module_of
from overlap_sched.fx.hazards import graph_hazards
from overlap_sched.fx.operators import Ordering, Role
from overlap_sched.fx.reading import Reading, read_graph
from overlap_sched.fx.sizes import carried_sizes
from overlap_sched.problem import FINISH, LAUNCH, OF_HOST, PART, Group, Kind, MemoryModel, Node, Problem, Storage
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.precedence import launched_on
from overlap_sched.report.words.graph import AssumedSize
from overlap_sched.transform.prices import OUT

Which = Callable[[fx.Node], bool] | Collection[str]
"""Inputs: by name, or by a function of their nodes."""
STAYS = "overlap_sched_stays"
"""In the metadata of an input of which it is known that its caller holds it on, whatever its name."""


def kept_inputs(
    inputs: Sequence[fx.Node], memory_model: MemoryModel, parameters: Which | None, donated: Which | None
) -> set[fx.Node]:
    """The placeholders whose storages stay to the end.

    ``parameters`` stay and ``donated`` may be freed, as the caller says; of both, it stays, and so does what is marked
    (:data:`STAYS`). The others by their names:

    - AOTAutograd's backward (some input is ``tangents_*``): ``primals_*`` stay; saved activations and tangents may go.
    - anything else (its forward, a compiled optimizer, ``make_fx``): all stay, since the caller may still hold them.
    - in the ``tracker`` model, as torch's own ``memory_estimator._is_releasable``: all but ``primals*`` may go.

    Raises:
        OptionsError: A name is not one of the graph's inputs.
    """
    names = {node.name for node in inputs} | {node.target for node in inputs}
    stays, goes = _predicate(parameters, names, "parameters"), _predicate(donated, names, "donated")
    by_name = memory_model == "tracker" or any(node.name.startswith("tangents") for node in inputs)
    stay = [n for n in inputs if stays(n) or STAYS in n.meta]
    return {*stay, *(n for n in inputs if not goes(n) and (not by_name or n.name.startswith("primals")))}


def _predicate(which: Which | None, names: set[str], argument: str) -> Callable[[fx.Node], bool]:
    if callable(which):
        return which
    wanted = {which} if isinstance(which, str) else set(which or ())
    if unknown := sorted(wanted - names):
        near = get_close_matches(unknown[0], sorted(names), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "give names of inputs, or a function of their nodes."
        raise OptionsError(f"{argument} names {unknown[0]!r}, which is not an input of the graph: {hint}")
    return lambda node: node.name in wanted or node.target in wanted


def groups_of(
    reading: Reading, launches: Sequence[int], given: Mapping[str, Group], carried: Mapping[str, Facts], nodes: Nodes
) -> tuple[dict[int, str], dict[str, Placement]]:
    """Per collective the name of its group, and per name, of those in sub-graphs, too, its size and where it is.

    A group's size is the one in ``given`` or ``carried``; else that in its collectives' arguments; else that of the
    live process group; else the ratio of output to input; else that of the world (counted in the notes as
    ``group_size_guessed``). Where it is: as ``given`` says, else by its ranks where they can be known, else by
    :func:`overlap_sched.cost.placement.place`.

    Raises:
        CostError: A group does not fit the ranks.
    """
    members: dict[str, list[_Site]] = {}
    live: dict[str, Any] = {}
    for inner, v in (*((reading, v) for v in launches), *_inside(reading)):
        name, group = name_and_group(inner.nodes[v])
        members.setdefault(name, []).append((inner, v))
        live.setdefault(name, name if group is None else group)
    name_of = {v: name for name, of_name in members.items() for inner, v in of_name if inner is reading}
    open_ = ((name, of_name) for name, of_name in members.items() if name not in given)
    facts = {name: carried.get(name) or _facts(of_name, live[name], nodes) for name, of_name in open_}
    if any(not one.ranks for one in facts.values()):
        ops = ((v, t, "" if t.comm is None else t.comm.op) for v, t in enumerate(reading.traits))
        steps = [DataflowNode(reading.inputs[v], not (t.free or op), op, name_of.get(v, "")) for v, t, op in ops]
        shards = sharding_groups(steps)
        facts = {name: one._replace(shards=name in shards) for name, one in facts.items()}
    placed = place(facts, nodes)
    found = {name: one._replace(group=one.group._replace(ranks=facts[name].ranks)) for name, one in placed.items()}
    return name_of, {name: found[name] if name in found else Placement(given[name]) for name in members}


_Site = tuple[Reading, int]
"""A collective: in which graph, and where."""


def _inside(reading: Reading) -> Iterator[_Site]:
    """Yield the collectives in sub-graphs, at every depth."""
    for inner in dict.fromkeys(one for readings in reading.inner.values() for one in readings):
        yield from ((inner, v) for v, traits in enumerate(inner.traits) if traits.role in (Role.LAUNCH, Role.BLOCKING))
        yield from _inside(inner)


def carried_facts(graph: fx.Graph) -> dict[str, Facts]:
    """The groups that a loaded dump carries along; none for other graphs."""
    carried = getattr(graph.owning_module, "meta", {}).get(GROUPS_KEY, {})
    return {name: Facts(size, tuple(ranks or ())) for name, (size, ranks) in carried.items()}


def _facts(members: list[_Site], live: Any, nodes: Nodes) -> Facts:
    """Return what is known of a group: its ranks, or else its size."""
    arguments = [call_of(reading.nodes[v]).arguments for reading, v in members]
    ranks = arguments[0].get("ranks") or live_ranks(live)
    size = next((one["group_size"] for one in arguments if one.get("group_size") is not None), None)
    if ranks and size in (None, len(ranks)):
        return Facts(len(ranks), tuple(ranks))
    for reading, v in members if not size else ():  # how much larger one side of a gather or scatter is than the other
        into, out = sum(reading.value_bytes[u] for u in reading.inputs[v]), reading.value_bytes[v]
        op = getattr(reading.traits[v].comm, "op", "")
        small, large = (into, out) if "gather" in op else (out, into) if "scatter" in op else (0, 0)
        if size is None and 0 < small <= large and large % small == 0:
            size = large // small
    if size is None:
        size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else nodes.ranks_per_node
        members[0][0].notes["group_size_guessed"] += 1
    return Facts(int(size))


Memory = tuple[list[tuple[int, ...]], list[tuple[int, ...]], tuple[Storage, ...]]
"""Per node what it allocates, and what it uses (ids of storages); the storages that count."""


def memory_of(reading: Reading, memory_model: MemoryModel, kept: set[fx.Node]) -> Memory:
    """Allocations and uses of a graph.

    ``runtime``: a wait allocates nothing and uses its collective's inputs and output; a collective that nothing waits
    for holds both to the end; what is mutated of the inputs stays. ``tracker``: as torch's
    ``memory_estimator.MemoryTracker`` sees them: each value's own storages, a use is an input's value, and what is
    never used is never freed.

    Storages that are not on a CPU count; where all are, they do.
    """
    runtime = memory_model == "runtime"
    alloc, use = _runtime(reading) if runtime else _tracker(reading)
    pinned = _pinned(reading, kept, runtime)
    table = reading.storages
    all_on_cpu = set(table.device) <= {"cpu"}
    counted = dict.fromkeys(s for stored in alloc for s in stored if all_on_cpu or table.device[s] != "cpu")
    number = {s: i for i, s in enumerate(counted)}
    return (
        [tuple([number[s] for s in a if s in number]) if a else a for a in alloc],
        [tuple([number[s] for s in u if s in number]) if u else u for u in use],
        tuple(Storage(table.nbytes[s], s in pinned) for s in number),
    )


def _runtime(r: Reading) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    root = r.storages.root
    alloc = [tuple([s for s in fresh if root[s] == s]) if fresh else fresh for fresh in r.raw_fresh]
    use = list(r.takes)
    for v, before in r.order_only.items():
        use[v] = _union(use[v], *(r.outs[u] for u in before))
    for v, launches in r.ends.items():
        use[v] = _union(*(r.held_in_flight(launch) for launch in launches), r.takes[v])
    waited = {launch for launches in r.ends.values() for launch in launches}
    if (in_flight := [v for v in r.launches if v not in waited]) and r.nodes[-1].op == "output":
        use[-1] = _union(use[-1], *(s for v in in_flight for s in (r.held_in_flight(v), r.outs[v])))
    return alloc, use


def _tracker(r: Reading) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    fake = r.storages.fake
    outs = [raw if all(fake[s] for s in raw) else tuple(s for s in raw if fake[s]) for raw in r.raw_outs]
    alloc = [tuple([s for s in fresh if fake[s]]) if fresh else fresh for fresh in r.raw_fresh]
    use = [outs[ids[0]] if len(ids) == 1 else _union(*(outs[u] for u in ids)) for ids in r.inputs]
    if r.nodes[-1].op == "output":
        used = {s for u in use for s in u}
        use[-1] = _union(use[-1], [s for a in alloc for s in a if s not in used])
    return alloc, use


def _union(*parts: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys([s for part in parts for s in part]))


def _pinned(r: Reading, kept: set[fx.Node], runtime: bool) -> set[int]:
    """Storages that are never freed."""
    inputs = {s for v, node in enumerate(r.nodes) if node.op == "placeholder" for s in r.outs[v]}
    pinned: set[int] = set()
    for v, node in enumerate(r.nodes):
        if node in kept or (node.op == "get_attr" and (runtime or node.name.startswith("primals"))):
            pinned.update(r.outs[v] if runtime else r.raw_outs[v])
    if runtime:
        # the caller sees all writes but those of unknown calls, which we only suppose
        pinned.update(s for v, roots in r.writes.items() for s in roots if s in inputs and r.traits[v].known)
    return pinned


def with_company(
    nodes: Sequence[Node],
    ends: Mapping[int, Sequence[int]],
    outside: Collection[int],
    groups: Mapping[str, Group],
    model: CostModel | None,
) -> tuple[tuple[Node, ...], list[int]]:
    """Nodes in which every wait has one collective, with launch and finish nodes, and what each stands for.

    Args:
        nodes: In their original order; of a wait of several collectives, ``collective`` is one of them. What
            communicates on the compute stream depends on what was launched before on its groups.
        ends: Per node that waits (its index) the indices of all collectives that it waits for.
        outside: Nodes that wait for what this graph does not launch.
        groups: Of the collectives.
        model: Where it says that launching a collective, or finishing it, takes time, that has a node.
    """
    listed, waiting = _behind_company(nodes, _further_waits(nodes, ends, outside))
    result, launching = _behind_company(listed, _host_nodes(listed, groups, model))
    return result, [waiting[v] for v in launching]


def _further_waits(
    nodes: Sequence[Node], ends: Mapping[int, Sequence[int]], outside: Collection[int]
) -> dict[int, list[Node]]:
    company: dict[int, list[Node]] = {}
    for v, node in enumerate(nodes):
        if v in ends or node.launches or v in outside:
            found = dict.fromkeys([*ends.get(v, ()), *(u for u in node.deps if nodes[u].group in node.launches)])
            others = [(nodes[u].name, u) for u in found if u != node.collective]
            company[v] = [Node(f"{node.name}.{name}", Kind.WAIT, (u,), op=PART, collective=u) for name, u in others]
            if v in outside and node.kind is Kind.COMPUTE and not others:
                company[v] = [Node(f"{node.name}.wait", Kind.WAIT, op=PART)]
    return company


def _host_nodes(nodes: Sequence[Node], groups: Mapping[str, Group], model: CostModel | None) -> dict[int, list[Node]]:
    if not isinstance(model, LaunchingModel):
        return {}
    collectives = [(v, node, node.group) for v, node in enumerate(nodes) if node.kind is Kind.COLLECTIVE]
    works = {v: Collective(node.op, node.bytes, groups[name]) for v, node, name in collectives if name is not None}
    times = {v: (LAUNCH, model.launch_us(work)) for v, work in works.items()}
    if isinstance(model, FinishingModel):
        waits = [(v, node) for v, node in enumerate(nodes) if node.kind is Kind.WAIT]
        own = {node.collective for _, node in waits if node.op != PART}
        for v, (op, at) in ((v, (node.op, node.collective)) for v, node in waits):
            if at is not None and (op != PART or at not in own):
                times[v] = FINISH, model.finish_us(works[at])
    taken = ((v, nodes[v], op, us) for v, (op, us) in times.items() if us > 0.0)
    return {v: [Node(f"{n.name}.{op}", Kind.COMPUTE, n.deps, time_us=us, op=op)] for v, n, op, us in taken}


def _behind_company(
    nodes: Sequence[Node], company: Mapping[int, Sequence[Node]]
) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes behind others that they must come after (by old indices), and per node the old index that it stands for."""
    if not any(company.values()):
        return tuple(nodes), tuple(range(len(nodes)))
    result: list[Node] = []
    stands_for: list[int] = []
    ids: list[int] = []  # per old index
    for v, node in enumerate(nodes):
        first = len(result)
        for one in (*company.get(v, ()), node):
            deps = [ids[u] for u in one.deps]
            deps = deps if one.kind is Kind.OUTPUT else sorted(deps)
            before = range(first, len(result)) if one is node else ()
            collective = None if one.collective is None else ids[one.collective]
            result.append(one._replace(deps=(*deps, *before), collective=collective))
            stands_for.append(v)
        ids.append(len(result) - 1)
    return tuple(result), tuple(stands_for)


HOST = {OUT: Group(1, True)}
"""The stream of copies to and from the host, as a group."""


N = TypeVar("N")


@dataclass(frozen=True)
class LiftedNodes(Generic[N]):
    """A problem and the nodes that it stands for.

    Attributes:
        problem: What is to be scheduled.
        nodes: Per problem id, its node: the graph's own order; ``None`` where it stands for none. A wait of several
            collectives has an id for each of them (:mod:`overlap_sched.fx.lifting`).
        notes: How often something was not known or not usual, by name.
        sizes: Data-dependent sizes on which the storages' bytes rest.
        undeclared: Operators of other libraries of which nothing was said (:func:`overlap_sched.declare_operator`), and
            whether they are taken for communication.
    """

    problem: Problem
    nodes: tuple[N, ...]
    notes: Mapping[str, int]
    sizes: tuple[AssumedSize, ...]
    undeclared: Mapping[str, bool]

    def reordered(self, order: Sequence[int]) -> list[N]:
        """The nodes in an order of the problem, each once: where the last of its ids is."""
        return [one for one in reversed(dict.fromkeys(self.nodes[v] for v in reversed(order))) if one is not None]


@dataclass(frozen=True)
class Lifted(LiftedNodes[fx.Node]):
    """A problem and the FX nodes that it stands for.

    Attributes:
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
        devices: Types of those that its tensors are on: ``"cuda"``.
        model: What has priced it; it prices what rewrites make, too.
    """

    prices: tuple[Price, ...]
    placements: Mapping[str, Placement]
    devices: frozenset[str]
    model: CostModel


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
    fusion: Fusion = "none",
) -> Lifted:
    """Lift a graph whose nodes have ``meta["val"]``. The graph is only read.

    Args:
        gm: The graph, after AOTAutograd (aten operators).
        memory_model: See :data:`overlap_sched.problem.MemoryModel`.
        cost: Microseconds of a node, or ``None`` to leave it to ``model``.
        parameters: Inputs that are never freed, by name or predicate.
        donated: Inputs that may be freed after their last use. The others are classified by name, see
            :func:`overlap_sched.fx.lifting.kept_inputs`.
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
        fusion: ``"inductor"`` where TorchInductor will compile the graph: nodes are priced by the kernels that it would
            make of them. The graph stays one of single nodes. See :mod:`overlap_sched.cost.fusion`.

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
    alloc, use, storages = memory_of(reading, memory_model, kept)
    model = model or (Roofline() if on is None else model_of(on))
    costs = Pricing(model, group_table, fusion).costs(reading, cost, after)
    bare = (_node(reading, v, after, costs, name_of) for v in range(len(reading.nodes)))
    listed = [node._replace(alloc=a, use=u) for node, a, u in zip(bare, alloc, use, strict=True)]
    nodes, stands_for = with_company(listed, reading.ends, reading.outside, group_table, model)
    used = {group for node in nodes for group in launched_on(node)}
    used_groups = {k: g for k, g in group_table.items() if k in used}
    beside = NO_CONTENTION if on is None or not contention else contention_of(on, used_groups)
    waited = {launch for launches in reading.ends.values() for launch in launches}
    notes = reading.notes
    notes["collective_without_wait"] = sum(v not in waited for v in reading.launches)
    notes["hazard"] = sum(len(before.difference(reading.inputs[v])) for v, before in after.items())
    notes["fence"] = list(reading.ordering.values()).count(Ordering.FENCE)
    priced = zip(nodes, stands_for, strict=True)
    name = name or (type(gm).__name__ if isinstance(gm, fx.GraphModule) else "graph")
    return Lifted(
        Problem(name, nodes, storages, used_groups, memory_model, beside),
        tuple([reading.nodes[v] for v in stands_for]),
        {k: n for k, n in sorted(notes.items()) if n},
        (*reading.storages.assumed, *carried_sizes(graph)),
        reading.undeclared,
        tuple([costs.prices[v] if node.op not in OF_HOST else Price(node.time_us, "table") for node, v in priced]),
        placements,
        frozenset(reading.storages.device),
        model,
    )


LIFTING = tuple([name for name in signature(lift).parameters if name not in ("gm", "memory_model")])
"""What functions that lift a graph pass on to :func:`lift`."""


_KIND = {"placeholder": Kind.INPUT, "get_attr": Kind.INPUT, "output": Kind.OUTPUT}


def _node(r: Reading, v: int, after: Mapping[int, set[int]], costs: Costs, group_of: Mapping[int, str]) -> Node:
    node, traits, deps = r.nodes[v], r.traits[v], r.inputs[v]
    launches = traits.comm if traits.role is Role.LAUNCH else None
    kind = Kind.WAIT if traits.role is Role.WAIT else Kind.COLLECTIVE if launches else _KIND.get(node.op, Kind.COMPUTE)
    if v in after or kind is Kind.OUTPUT:
        before = sorted({*deps, *after.get(v, ())})
        deps = tuple(dict.fromkeys((*deps, *before)) if kind is Kind.OUTPUT else before)  # values first, as listed
    return Node(
        name=node.name,
        kind=kind,
        deps=deps,
        time_us=costs.prices[v].time_us,
        op=launches.op if launches else traits.op,
        group=group_of[v] if launches else None,
        collective=r.launch_of.get(v),
        flops=costs.flops[v],
        bytes=costs.bytes[v],
        launches=r.communicates[v].kept if v in r.communicates else (),
        module=module_of(node.meta),
        marks=marks_of(node.meta),
    )
