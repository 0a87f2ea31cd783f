"""The same graph on another machine: placed on a cluster's nodes, priced anew, over more or fewer ranks.

What is varied, and what is scaled for it; all else stays as it is:

``network``: bandwidth of the links across nodes, times a factor (on a single node: of those inside). Latencies stay.
``inside``: bandwidth of the links inside nodes, times a factor.
``compute``: rates of the device; every compute node's time is divided by the factor.
``ranks``: ranks of the largest process group that shards parameters; others that shard some (those of experts) grow
with it. What is gathered and what is reduced keep their bytes, the shards in front of and behind them get old / new of
theirs, and latencies follow the ranks and nodes. Times of compute stay, also of compute on shards (casts); so do all
activations: each rank keeps its batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from overlap_sched.cost.cluster import Cluster, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.model import Collective
from overlap_sched.cost.placement import DataflowNode, Facts, Nodes, place, sharding_groups
from overlap_sched.cost.toml_file import Bandwidth
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Group, Kind, Problem

_CHAIN = 6
"""Steps from a gather back to the graph's input: casts, padding."""


MACHINE = ("network", "inside", "compute", "ranks")


def on_machine(problem: Problem, cluster: Cluster, varied: Mapping[str, float], contention: bool) -> Problem:
    """Return a problem on a cluster that is scaled as ``varied`` says, by the names at the head of this module.

    Raises:
        OptionsError: Ranks are varied, and it cannot be known how.
        CostError: A process group does not fit the cluster.
    """
    placed = placed_on(problem, cluster)
    graph = with_ranks(placed, cluster, int(varied["ranks"])) if "ranks" in varied else placed
    return priced_on(graph, _scaled(cluster, varied), varied.get("compute", 1.0), contention)


def placed_on(problem: Problem, cluster: Cluster) -> Problem:
    """The problem with its groups on the cluster's nodes; where a group says how many it is on, it stays so."""
    shards = sharding_groups(_steps(problem))
    facts = {name: Facts(group.size, shards=name in shards) for name, group in problem.groups.items()}
    on = Nodes(cluster.ranks_per_node, cluster.across is None, cluster.mesh)
    placed = place(facts, on)
    groups = {
        name: group if group.nodes else placed[name].group._replace(ranks=group.ranks)
        for name, group in problem.groups.items()
    }
    return replace(problem, groups=groups)


def priced_on(problem: Problem, cluster: Cluster, compute: float, contention: bool) -> Problem:
    """The problem with its collectives priced for the cluster, and compute so many times as fast."""
    model = model_of(cluster)
    nodes = []
    for node in problem.nodes:
        if node.kind is Kind.COLLECTIVE and node.group is not None:
            work = Collective(node.op, node.bytes, problem.groups[node.group])
            node = node._replace(time_us=model.collective_us(work))
        elif node.kind is Kind.COMPUTE:
            node = node._replace(time_us=node.time_us / compute)
        nodes.append(node)
    beside = contention_of(cluster, problem.groups) if contention else problem.contention
    return replace(problem, nodes=tuple(nodes), contention=beside)


def with_ranks(problem: Problem, cluster: Cluster, ranks: int) -> Problem:
    """The problem with another number of ranks in the largest group that shards parameters.

    Other groups that shard parameters (those of experts) grow with it: all of them divide the same ranks. Groups that
    share the work on a batch (tensor and expert parallelism) and replicas stay as they are.

    Raises:
        OptionsError: There is no such group, or the ranks of one do not divide into nodes as they do now.
    """
    shards = _that_shard(problem)
    if not shards:
        raise OptionsError(
            "--vary ranks: it changes the process groups that shard parameters, and there is none here. Leave it out."
        )
    most, groups, scaled = max(problem.groups[name].size for name in shards), dict(problem.groups), set[int]()
    for name in shards:
        old = problem.groups[name]
        if old.size * ranks % most:
            step = most // math.gcd(most, old.size)
            raise OptionsError(
                f"--vary ranks={ranks}: process group {name!r} has {old.size} ranks for {most} of the largest one that "
                f"shards parameters, so it would have {old.size * ranks / most:g}; give a multiple of {step}."
            )
        groups[name] = _resized(name, old, cluster, old.size * ranks // most)
        scaled |= _shards(problem, name, old.size)
    storages = tuple(
        storage._replace(bytes=-(-storage.bytes * most // ranks)) if s in scaled else storage
        for s, storage in enumerate(problem.storages)
    )
    return replace(problem, storages=storages, groups=groups)


def _that_shard(problem: Problem) -> list[str]:
    """Groups that gather or scatter what is sharded; where none does, those that only reduce: replicas."""
    found = sorted(sharding_groups(_steps(problem)))
    nodes = (problem.nodes[v] for v in problem.collectives)
    part = {node.group for node in nodes if node.op.startswith(("all_gather", "reduce_scatter"))}
    return [name for name in found if name in part] or found


def _resized(name: str, old: Group, cluster: Cluster, ranks: int) -> Group:
    if old.intra_node and ranks <= cluster.ranks_per_node:
        return Group(ranks, True)
    per_node = cluster.ranks_per_node if old.intra_node else -(-old.size // max(old.nodes, 1))
    if ranks % per_node or ranks <= per_node:
        raise OptionsError(
            f"--vary ranks={ranks}: process group {name!r} has {per_node} rank{'' if per_node == 1 else 's'} on each "
            f"node now; give a multiple of {per_node}, two nodes at least."
        )
    return Group(ranks, False, ranks // per_node)


def _shards(problem: Problem, name: str, size: int) -> set[int]:
    """Storages that hold one rank's part of what the group gathers, reduces and scatters."""
    storages, found = problem.storages, set()
    maker = problem.maker
    for v in problem.collectives:
        node = problem.nodes[v]
        if node.group != name:
            continue
        for s in {*node.use, *node.alloc}:
            if storages[s].bytes * size == node.bytes:
                found.add(s)
                if s not in node.alloc:
                    found |= _behind(problem, maker, s)
    return found


def _behind(problem: Problem, maker: Sequence[int], storage: int) -> set[int]:
    """Find what a shard was cast or copied from, back to the graph's input."""
    found: set[int] = set()
    for _ in range(_CHAIN):
        node = problem.nodes[maker[storage]]
        sources = [s for s in node.use if s not in node.alloc]
        if node.kind is not Kind.COMPUTE or len(sources) != 1:
            break
        (storage,) = sources
        found.add(storage)
    return found


def _scaled(cluster: Cluster, varied: Mapping[str, float]) -> Cluster:
    network, inside = varied.get("network", 1.0), varied.get("inside", 1.0)
    link, across = cluster.inside, cluster.across
    if network != 1.0 or inside != 1.0:  # what was measured holds for the network as it is
        cluster = replace(cluster, tables=replace(cluster.tables, collectives=()))
    if across is None:
        inside *= network
    else:
        across = structs.replace(across, card_bytes_per_s=Bandwidth(across.card_bytes_per_s * network))
    return replace(
        cluster, across=across, inside=structs.replace(link, bytes_per_s=Bandwidth(link.bytes_per_s * inside))
    )


def _steps(problem: Problem) -> list[DataflowNode]:
    return [
        DataflowNode(node.deps, node.kind is Kind.COMPUTE and node.time_us > 0, node.op, node.group or "")
        for node in problem.nodes
    ]
