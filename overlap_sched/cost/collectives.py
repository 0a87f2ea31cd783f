"""What NCCL's collectives take, by its own tuning: algorithm and protocol by size, nodes and ranks per node.

Ported from ``src/graph/tuning.cc`` of NCCL 2.27.5 (its names in the comments): ring, tree, NVLS and NVLS tree, with LL,
LL128 and SIMPLE. Not ported: CollNet (SHARP), PAT, and the search for rings: bandwidths come from the cluster file.
NCCL takes the pair that it predicts to be fastest, and so does this.

Where measurements say otherwise, they are followed; all of these are fits of nccl-tests on H100 nodes that
``autoparallel/cost_models/nccl_cost_model.py`` (meta-pytorch/autoparallel, a54c2529) publishes: times inside an
NVSwitch node, how rings and NVLS trees across nodes fill with size, and all_to_all, of which NCCL has no model.

:func:`model_of` is the cost model of a cluster: compute by its device, collectives as measured, by NCCL's tuning, or by
a formula.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from overlap_sched.cost.cluster import Cluster, Fabric, Generation
from overlap_sched.cost.model import (
    FREE,
    Collective,
    Compute,
    Device,
    Price,
    PricedModel,
    Roofline,
    Source,
)
from overlap_sched.cost.table import TableModel, kind_of
from overlap_sched.problem import Group

CARD_PART = 0.96
"""Of a card's rate that a ring gets: 48 of 50 GB/s, 24 of 25 (speeds of ``src/graph/search.cc``)."""
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}  # baseLat
_HARDWARE_US = {  # hwLat
    "nvlink": {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)},
    "pcie": {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)},
    "net": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)},
}
_NVLS_US, _NVLS_TREE_NET_US = 25.0, 14.0
_LL_GB = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}  # llMaxBws on one node
_LL_NET_GB = (39.0, 20.4)  # llMaxBws on two, on more (Intel)
_RING_LL128_GB = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 73.4}  # perChMaxRingLL128Bws
_TREE_LL128_GB = {  # perChMaxTreeLL128Bws on one node, two, more
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (73.4, 73.4, 58.0),
}
_TREE_GB = {  # perChMaxTreeBws
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (77.4, 82.8, 72.0),
}
_TREE_CORRECTION = (  # treeCorrectionFactor, from 64 B in powers of two
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
_PLATEAU = 1.4
"""On the latency of a SIMPLE ring's all_reduce across nodes, where each channel has 64 bytes or more of each rank."""
_INSIDE_PART = {"volta": 0.8, "ampere": 0.8, "hopper": 0.767, "blackwell": 0.767}
"""Of the links' rate that rings inside a node get: 20 of 25 GB/s by SM80_NVLINK_BW; 345 of 450, measured."""
_NVLS_PART = 0.711
"""Of the links' rate that NVLS gets: 320 of 450 GB/s, by NCCL's log on H100."""
_ACROSS_PART = 0.9
"""Of the links' rate inside a node that rings across nodes can have."""

# measured on H100 nodes (autoparallel), by log2 of bytes per rank / 64
_RING_FILL = (0.01, 0.02, 0.03, 0.06, 0.1, 0.16, 0.25, 0.36, *[0.68] * 10, 0.79, *[0.87] * 5)
_NVLS_TREE_FILL = (*[1.0] * 8, 0.1, 0.1, 0.15, 0.28, 0.41, 0.55, 0.72, 0.88)
_SWITCHED_BASE_US, _SWITCHED_STEP_US = 4.5, 3.7  # through 8 us (2 ranks), 17 (4) and 30 (8)
_SWITCHED_PART = ((2.0, 0.777), (4.0, 0.943), (8.0, 1.0))  # 268, 325 and 345 GB/s of bus
_ALL_TO_ALL_US = ((2.0, 37.0), (4.0, 42.0), (8.0, 60.0), (16.0, 98.0), (32.0, 290.0))  # by nodes
_ALL_TO_ALL_INSIDE_US, _ALL_TO_ALL_PART = 50.0, 0.844  # 380 of 450 GB/s
_ALL_TO_ALL_OVERHEAD = 0.44  # a card reaches 1 - this / nodes of its rate


class NcclVariant(NamedTuple):
    """An algorithm with a protocol.

    Attributes:
        algorithm: ``"ring"``, ``"tree"``, ``"nvls"``, ``"nvls-tree"`` or ``"pairs"``. protocol: as NCCL names it.
        latency_us: Before the first byte. bytes_per_s: of the larger side (NCCL's algorithm bandwidth).
        fill: What part of that there is, by log2 of bytes / 64; empty: all. per_rank: of a rank's bytes, not of all.
        plateau_bytes: From this size on the latency is ``_PLATEAU`` times as long; 0: never.
    """

    algorithm: str
    protocol: str
    latency_us: float
    bytes_per_s: float
    fill: tuple[float, ...] = ()
    per_rank: bool = True
    plateau_bytes: int = 0

    def time_us(self, nbytes: int, ranks: int) -> tuple[float, float]:
        """Latency and the time of the bytes, in microseconds."""
        at = ((nbytes // ranks if self.per_rank else nbytes) >> 6).bit_length() - 1
        part = self.fill[min(max(at, 0), len(self.fill) - 1)] if self.fill else 1.0
        slow = _PLATEAU if self.plateau_bytes and nbytes >= self.plateau_bytes else 1.0
        return self.latency_us * slow, nbytes / (self.bytes_per_s * part) * 1e6


class Setting(NamedTuple):
    """Where a collective runs.

    Attributes:
        ranks: Of the group. nodes: that it is on.
        generation, fabric: As of the cluster.
        inside: Bytes per second of a rank's links in the node. across: of one rank's share of the cards.
        network_us: What the network adds to each step across nodes.
    """

    ranks: int
    nodes: int
    generation: Generation
    fabric: Fabric
    inside: float
    across: float
    network_us: float

    @property
    def per_node(self) -> int:
        """Ranks of the group on a node; the most, where they differ."""
        return -(-self.ranks // self.nodes)

    @property
    def switched(self) -> bool:
        """A node with NVSwitch and NVLink SHARP: Hopper and later."""
        return self.fabric == "nvswitch" and self.generation in ("hopper", "blackwell")


def setting(cluster: Cluster, ranks: int, nodes: int) -> Setting:
    """Where a group of so many ranks runs."""
    return Setting(
        ranks,
        nodes,
        cluster.generation,
        cluster.inside.fabric,
        cluster.inside.bytes_per_s,
        cluster.across_bytes_per_s,
        0.0 if cluster.across is None else cluster.across.latency_us,
    )


def nccl_us(op: str, nbytes: int, where: Setting) -> tuple[NcclVariant, float, float]:
    """The way that NCCL takes, its latency, and the time of the bytes (microseconds)."""
    kind = kind_of(op) or ("broadcast" if op.startswith("broadcast") else "send")
    found = [(way, *way.time_us(nbytes, where.ranks)) for way in ways(kind, where)]
    return min(found, key=lambda one: one[1] + one[2])


@cache
def ways(kind: str, where: Setting) -> tuple[NcclVariant, ...]:
    """All that NCCL chooses among."""
    if kind in ("all_to_all", "send"):
        return (_all_to_all(where) if kind == "all_to_all" else _send(where),)
    # LL128 wants NVLink inside (typeIntra at most PATH_NVB) and Volta or later
    protocols = (0, 1, 2) if where.fabric in ("nvswitch", "nvlink") or where.per_node == 1 else (0, 2)
    if where.nodes == 1 and where.switched:
        found = [_switched_ring(kind, where)]
    else:
        found = [_ring(kind, where, p) for p in protocols]
    if kind == "all_reduce":
        found += [_tree(where, p) for p in protocols] if where.nodes > 1 else []
        if where.switched and where.nodes == 1:
            found.append(NcclVariant("nvls", "SIMPLE", _NVLS_US, where.inside * _NVLS_PART * 5 / 6))
        if where.switched and where.nodes > 1 and where.per_node >= 4:
            found.append(_nvls_tree(where))
    return tuple(found)


def bus_bytes_per_s(where: Setting) -> float:
    """Return what passes each point of a ring. Across nodes, all the group's cards together."""
    inside = where.inside * _INSIDE_PART[where.generation]
    if where.nodes == 1:
        return inside
    cards = where.per_node * where.across * CARD_PART
    return cards if where.per_node == 1 else min(where.inside * _ACROSS_PART, cards)


def _steps(kind: str, n: int) -> int:
    return {"all_reduce": 2 * (n - 1), "broadcast": n}.get(kind, n - 1)


def _ring(kind: str, where: Setting, p: int) -> NcclVariant:
    ranks, nodes, bus = where.ranks, where.nodes, bus_bytes_per_s(where)
    steps = _steps(kind, ranks)
    if _PROTOCOLS[p] == "LL":
        most = _LL_GB[where.generation] if nodes == 1 else _LL_NET_GB[0 if nodes == 2 else 1]
        bus = min(most * 1e9, bus * 0.5)
    elif _PROTOCOLS[p] == "LL128":
        bus = min(bus * 0.92, _channels(where) * _RING_LL128_GB[where.generation] * 1e9)
    inside_us = _HARDWARE_US[_hardware(where)]["ring"][p]
    across_us = _across_us(where, "ring", p)
    latency_us = _BASE_US["ring"][p]
    if kind == "broadcast":
        latency_us += across_us if nodes > 1 else inside_us
    else:
        far = (steps // (ranks - 1)) * (nodes - 1)
        overhead_us = 0.0 if nodes == 1 else 3.0 if _PROTOCOLS[p] == "SIMPLE" else 1.0  # getNetOverhead, Intel
        latency_us += (steps - far) * max(inside_us, overhead_us) + far * across_us
    plateau = 64 * _channels(where) * ranks if nodes > 1 and kind == "all_reduce" and p == 2 else 0
    fill = _RING_FILL if where.switched and nodes > 1 and where.per_node >= 8 and kind != "broadcast" else ()
    return NcclVariant("ring", _PROTOCOLS[p], latency_us, bus * ranks / steps, fill, plateau_bytes=plateau)


def _switched_ring(kind: str, where: Setting) -> NcclVariant:
    """As measured: SIMPLE's latency at every size, where the formula would take LL below a megabyte or two."""
    bus = bus_bytes_per_s(where) * _between(_SWITCHED_PART, where.ranks)
    latency_us = _SWITCHED_BASE_US + _SWITCHED_STEP_US * (where.ranks - 1)
    return NcclVariant("ring", "SIMPLE", latency_us, bus * where.ranks / _steps(kind, where.ranks))


def _tree(where: Setting, p: int) -> NcclVariant:
    at, channels = min(where.nodes, 3) - 1, _channels(where)
    bus = min(bus_bytes_per_s(where) * 0.92, channels * _TREE_GB[where.generation][at] * 1e9)
    if where.nodes == 2 and where.per_node < 4:  # two nodes: bwIntra, twice what the cards have
        bus = min(2 * bus, channels * _TREE_GB[where.generation][at] * 1e9)
    if _PROTOCOLS[p] == "LL":
        bus = min(bus / 3.8, _LL_NET_GB[0 if where.nodes == 2 else 1] * 1e9)
    elif _PROTOCOLS[p] == "LL128":
        bus = min(bus * 120 / 128, channels * _TREE_LL128_GB[where.generation][at] * 1e9)
    inside_us = _HARDWARE_US[_hardware(where)]["tree"][p]
    hops = where.nodes.bit_length() - 1
    latency_us = _BASE_US["tree"][p] + 2 * ((where.per_node - 1) * inside_us + hops * _across_us(where, "tree", p))
    return NcclVariant("tree", _PROTOCOLS[p], latency_us, bus * 0.85 * 0.5, _TREE_CORRECTION[p], per_rank=False)


def _nvls_tree(where: Setting) -> NcclVariant:
    cards = bus_bytes_per_s(where)
    bus = min(where.inside * _NVLS_PART, cards if where.nodes == 2 else cards / 2)
    network_us = _NVLS_TREE_NET_US + 2 * where.network_us
    latency_us = _NVLS_US + 2 * (where.nodes.bit_length() - 1) * network_us
    return NcclVariant("nvls-tree", "SIMPLE", latency_us, bus * 5 / 6, (*_NVLS_TREE_FILL, 1.0))


def _all_to_all(where: Setting) -> NcclVariant:
    """Each rank sends to each other one: the slowest link decides."""
    n = where.ranks
    if where.nodes == 1:
        part = _ALL_TO_ALL_PART if where.switched else _INSIDE_PART[where.generation] * 0.7 * n / (n - 1)
        latency_us = _ALL_TO_ALL_INSIDE_US if where.switched else 8.4 + n * _HARDWARE_US[_hardware(where)]["ring"][2]
        return NcclVariant("pairs", "SIMPLE", latency_us, where.inside * part)
    far = (n - where.per_node) / n
    rate = where.across * (1 - _ALL_TO_ALL_OVERHEAD / where.nodes)
    latency_us = _between(_ALL_TO_ALL_US, where.nodes) * max(1.0, where.nodes / 32) + where.network_us
    return NcclVariant("pairs", "SIMPLE", latency_us, rate / far)


def _send(where: Setting) -> NcclVariant:
    if where.nodes == 1:
        return NcclVariant("pairs", "SIMPLE", 8.4 + _HARDWARE_US[_hardware(where)]["ring"][2], bus_bytes_per_s(where))
    return NcclVariant("pairs", "SIMPLE", 8.4 + _across_us(where, "ring", 2), where.across * CARD_PART)


def _hardware(where: Setting) -> str:
    return "nvlink" if where.fabric in ("nvswitch", "nvlink") else "pcie"


def _across_us(where: Setting, algorithm: str, p: int) -> float:
    """A step across nodes; with one rank per node nothing hides it: the tree's."""
    times = _HARDWARE_US["net"]["tree" if where.per_node == 1 else algorithm]
    return times[p] + where.network_us * (2 if _PROTOCOLS[p] == "SIMPLE" else 1)


def _channels(where: Setting) -> int:
    """As NCCL's search finds on H100 nodes: 16 on one node, one for each card of a whole node, else two for each."""
    return 16 if where.nodes == 1 else 8 if where.per_node >= 8 and where.switched else 2 * where.per_node


def _between(points: tuple[tuple[float, float], ...], x: float) -> float:
    """Linear between points, level beyond them."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * max(x - x0, 0.0) / (x1 - x0)
    return points[-1][1]


@dataclass(frozen=True)
class ClusterModel(PricedModel):
    """Prices of a cluster, without its measured tables: for these see :func:`model_of`."""

    cluster: Cluster

    @property
    def device(self) -> Device:
        """The device that compute is priced for."""
        return self.cluster.device

    def compute_price(self, work: Compute) -> Price:
        """As of :class:`~overlap_sched.cost.Roofline`."""
        return Roofline(self.device).compute_price(work)

    def collective_price(self, work: Collective) -> Price:
        """Bound by ``latency`` or ``bandwidth``, whichever takes longer; a group of one rank has nothing to send."""
        if work.group.size == 1:
            return FREE
        cluster, nodes = self.cluster, nodes_of(self.cluster, work.group)
        source: Source = "nccl" if cluster.library == "nccl" else "roofline"
        if source == "nccl":
            _, latency_us, sending_us = nccl_us(work.op, work.bytes, setting(cluster, work.group.size, nodes))
        else:
            latency_us, sending_us = _formula(cluster, work, nodes)
        return Price(latency_us + sending_us, source, "latency" if latency_us > sending_us else "bandwidth")


def nodes_of(cluster: Cluster, group: Group) -> int:
    """On how many nodes a group's ranks are: as it says, else as few as can hold them."""
    if group.intra_node or cluster.across is None:
        return 1
    return group.nodes or max(2, -(-group.size // cluster.ranks_per_node))


def model_of(cluster: Cluster) -> PricedModel:
    """The cost model of a cluster: what was measured goes before all else.

    In one machine without GPUs (fabric ``memory``) the thread that computes launches collectives, too.
    """
    formulas, on_host = ClusterModel(cluster), cluster.inside.fabric == "memory"
    return TableModel(cluster.tables, formulas, on_host=on_host) if cluster.tables else formulas


def _formula(cluster: Cluster, work: Collective, nodes: int) -> tuple[float, float]:
    """Latency, and a ring at the bandwidth of the slowest link: (n - 1) / n of the larger side, once or twice."""
    inside, across, n = cluster.inside, cluster.across, work.group.size
    latency_us, rate = float(inside.latency_us), float(inside.bytes_per_s)
    if nodes > 1 and across is not None:
        share = cluster.across_bytes_per_s
        cards = share if work.op.startswith("all_to_all") else share * -(-n // nodes)
        latency_us, rate = latency_us + across.latency_us, min(rate, cards)
    rounds = 2 if work.op.startswith(("all_reduce", "allreduce")) else 1
    return latency_us, rounds * work.bytes * (n - 1) / n / rate * 1e6
