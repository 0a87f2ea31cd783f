"""What compute and communication cost each other on a cluster."""

from collections.abc import Mapping
from dataclasses import replace

from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.problem import Group
from overlap_sched.problem.contention import Contention

INSIDE, ACROSS = "inside nodes", "across nodes"
"""Links: of all groups whose ranks are in one node, and of all others."""


def contention_of(cluster: Cluster, groups: Mapping[str, Group]) -> Contention:
    """Contention among the groups of a graph, placed on a cluster.

    Every rank runs the same graph: groups of one rank that are in its node share its links there, and those that
    cross nodes share its part of the network cards.
    """
    own = Contention({kind: factor for kind, factor in cluster.beside.slowdown.items() if factor > 1.0})
    if cluster.beside.shares:
        balance = cluster.device.flops_per_s / cluster.device.bytes_per_s
        own = replace(own, shares=cluster.beside.shares, flops_per_byte=balance)
    if not cluster.beside.shared_links:
        return own
    links = {name: INSIDE if group.intra_node else ACROSS for name, group in groups.items() if group.size > 1}
    shared = list(links.values())
    links = {name: link for name, link in links.items() if shared.count(link) > 1}
    return replace(own, links=links)
