"""Networks: latency and bandwidth of a collective, inside a node and across nodes."""

from typing import NamedTuple

from overlap_sched.problem import Group


class Link(NamedTuple):
    """What a collective gets: ``latency_us`` to start it, ``bytes_per_s`` while it runs."""

    latency_us: float
    bytes_per_s: float


class Network(NamedTuple):
    """Two links: inside a node (NVLink and the like), and across nodes."""

    intra_node: Link
    across_nodes: Link

    def link(self, group: Group) -> Link:
        """The link that a group's collectives run over."""
        return self.intra_node if group.intra_node else self.across_nodes


HGX = Network(intra_node=Link(12.0, 370e9), across_nodes=Link(30.0, 180e9))
"""Nodes of eight H100: the network of the shared problem files. NVLink 4 has 450 GB/s in each direction, of
which a large collective reaches 370; across nodes a group that uses all the node's network cards reaches 180."""
