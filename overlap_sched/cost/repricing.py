"""The same graph on another machine: placed on a cluster's nodes, priced anew.

What is varied, and what is scaled for it; all else stays as it is:

``network``: bandwidth of the links across nodes, times a factor (on a single node: of those inside). Latencies stay.
``inside``: bandwidth of the links inside nodes, times a factor.
``compute``: rates of the device; every compute node's time is divided by the factor.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from overlap_sched.cost.cluster import Cluster, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.model import Collective
from overlap_sched.cost.placement import DataflowNode, Facts, Nodes, place, sharding_groups
from overlap_sched.cost.toml_file import Bandwidth
from overlap_sched.problem import Kind, Problem

MACHINE = ("network", "inside", "compute")


def on_machine(problem: Problem, cluster: Cluster, varied: Mapping[str, float], contention: bool) -> Problem:
    """Return a problem on a cluster that is scaled as ``varied`` says, by the names at the head of this module.

    Raises:
        CostError: A process group does not fit the cluster.
    """
    return priced_on(placed_on(problem, cluster), _scaled(cluster, varied), varied.get("compute", 1.0), contention)


def placed_on(problem: Problem, cluster: Cluster) -> Problem:
    """The problem with its groups on the cluster's nodes; where a group says how many it is on, it stays so."""
    steps = (
        DataflowNode(node.deps, node.kind is Kind.COMPUTE and node.time_us > 0, node.op, node.group or "")
        for node in problem.nodes
    )
    shards = sharding_groups(list(steps))
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


def _scaled(cluster: Cluster, varied: Mapping[str, float]) -> Cluster:
    network, inside = varied.get("network", 1.0), varied.get("inside", 1.0)
    link, across = cluster.inside, cluster.across
    if network != 1.0 or inside != 1.0:  # what was measured holds for the network as it is
        cluster = structs.replace(cluster, tables=replace(cluster.tables, collectives=()))
    if across is None:
        inside *= network
    else:
        across = structs.replace(across, card_bytes_per_s=Bandwidth(across.card_bytes_per_s * network))
    return structs.replace(
        cluster, across=across, inside=structs.replace(link, bytes_per_s=Bandwidth(link.bytes_per_s * inside))
    )
