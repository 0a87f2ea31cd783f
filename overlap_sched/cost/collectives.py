"""What NCCL's collectives take: the way that its tuning chooses, by size, nodes and ranks per node, and its time.

Chosen as ``src/graph/tuning.cc`` of NCCL 2.27.5 does (its names in the comments): of ring, tree, NVLS and NVLS tree,
with LL, LL128 and SIMPLE, the one that it expects to be fastest. Not ported: CollNet (SHARP), PAT, and the search for
rings: bandwidths come from the cluster file.

What was chosen takes as long as NCCL expects, but for what public tables of nccl-tests say otherwise
(``scripts/truth/collectives.csv``; ``python -m scripts.studies.truth`` compares). NVLS and NVLS tree go by the chunks
that ``calcCollChunking`` of ``src/enqueue.cc`` cuts, as each round of chunks adds to the time and the first ones fill
the pipeline::

    us = latency + bytes / rate + rounds * LOOP + DEPTH * bytes of a round / rate

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

_CARD_PART = 0.96
"""Of a card's rate that NCCL expects: 48 of 50 GB/s, 24 of 25 (speeds of ``src/graph/search.cc``)."""
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
_RING_LL128_GB = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}  # perChMaxRingLL128Bws
_TREE_LL128_GB = {  # perChMaxTreeLL128Bws on one node, two, more; Blackwell's of 2.30.7
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
_TREE_GB = {  # perChMaxTreeBws
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
_TREE_CORRECTION = (  # treeCorrectionFactor, from 64 B in powers of two
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
_PLATEAU = 1.4
"""On the latency that NCCL expects of a SIMPLE ring's all_reduce across nodes from 64 bytes per channel and rank on."""
_INSIDE_PART = {"volta": 0.8, "ampere": 0.8, "hopper": 0.767, "blackwell": 0.767}
"""Of the links' rate that rings inside a node get: 20 of 25 GB/s by SM80_NVLINK_BW; 345 of 450, measured."""
_NVLS_PART = {"hopper": 0.711, "blackwell": 0.619}
"""Of the links' rate that NVLS gets: 320 of 450 GB/s, by NCCL's log on H100; nvlsEfficiency 0.74 against 0.85."""
_NVLS_CHANNELS = {"hopper": (16, 16, 16), "blackwell": (24, 32, 24)}  # ncclNvlsTuning, on one node, two, more
_ACROSS_PART = 0.9
"""Of the links' rate inside a node that rings across nodes can have."""

# measured: fitted on the rows of scripts/truth/fitted.txt
_NVLS_REACHED = 0.903  # of _NVLS_PART: 289 GB/s on 8 H100
_LOOP_US = (4.0, 9.0)  # that a round of NVLS's chunks adds, on one node and on more
_DEPTH = 1.9  # rounds that fill NVLS's pipeline on one node
_TREE_DEPTH = 0.85  # the same of NVLS tree, for each level of the tree
_TREE_REACHED = 0.6  # of LL128's trees over more than two nodes, from 4 MiB on, where NCCL expects 0.8 and more
_RING_REACHED = 0.95  # of the cards' rate that NCCL expects of SIMPLE rings: 365 GB/s; 321 to 392 in six tables
_GATHER_STEP_US = 1.6  # of LL's rings inside a switched node, all_gather and reduce_scatter: 17 to 19 us on 8 GPUs
# nccl-tests on H100 nodes by autoparallel/cost_models/nccl_cost_model.py (meta-pytorch/autoparallel, a54c2529)
_SWITCHED_BASE_US, _SWITCHED_STEP_US = 4.5, 3.7  # through 8 us (2 ranks), 17 (4) and 30 (8)
_SWITCHED_PART = ((2.0, 0.777), (4.0, 0.943), (8.0, 1.0))  # 268, 325 and 345 GB/s of bus
_ALL_TO_ALL_US = ((2.0, 37.0), (4.0, 42.0), (8.0, 60.0), (16.0, 98.0), (32.0, 290.0))  # by nodes
_ALL_TO_ALL_INSIDE_US, _ALL_TO_ALL_PART = {"hopper": 50.0, "blackwell": 11.0}, 0.844  # 380 of 450 GB/s
_ALL_TO_ALL_OVERHEAD = 0.44  # a card reaches 1 - this / nodes of its rate
# DeepEP's kernels (scripts/truth/expert_parallel.csv): to start, and of the links' and the cards' rate
_EXCHANGE_US, _EXCHANGE_INSIDE_PART, _EXCHANGE_ACROSS_PART = 25.0, 0.77, 0.87
_EXPERTS, _EXPERT_NODES = 8, 4  # of a token, and on so many nodes at most: DeepSeek-V3 (arXiv 2412.19437)


EXCHANGES = ("dispatch", "combine", "low_latency")
"""What DeepEP's operators begin with: tokens to their experts' ranks, and back."""


class Chunks(NamedTuple):
    """How NVLS cuts what it sends (``calcCollChunking``).

    Attributes:
        at_once: Chunks of a round: channels times ranks of a node.
        sizes: Bytes of a chunk, from the largest on, each with how many rounds of it there are at least.
        loop_us: That a round adds. depth: rounds that pass before the first is done.
    """

    at_once: int
    sizes: tuple[tuple[int, int], ...]
    loop_us: float
    depth: float

    def round_bytes(self, nbytes: int) -> int:
        """Bytes of a round, of so many together."""
        rounds = (self.at_once * size for size, least in self.sizes if nbytes >= least * self.at_once * size)
        return next(rounds)


class NcclVariant(NamedTuple):
    """An algorithm with a protocol.

    Attributes:
        algorithm: ``"ring"``, ``"tree"``, ``"nvls"``, ``"nvls-tree"`` or ``"pairs"``. protocol: as NCCL names it.
        latency_us: Before the first byte. bytes_per_s: of the larger side (NCCL's algorithm bandwidth). As NCCL has
            them, by which it chooses.
        correction: What part of that rate there is, by log2 of bytes / 64; beyond its end: all.
        plateau_bytes: From this size on NCCL expects ``_PLATEAU`` times the latency; 0: never.
        measured: Latency and rate, where they are others. chunks: of NVLS.
    """

    algorithm: str
    protocol: str
    latency_us: float
    bytes_per_s: float
    correction: tuple[float, ...] = ()
    plateau_bytes: int = 0
    measured: tuple[float, float] | None = None
    chunks: Chunks | None = None

    def expected_us(self, nbytes: int) -> float:
        """Microseconds that NCCL expects."""
        slow = _PLATEAU if self.plateau_bytes and nbytes >= self.plateau_bytes else 1.0
        return self.latency_us * slow + nbytes / (self.bytes_per_s * self._part(nbytes)) * 1e6

    def time_us(self, nbytes: int) -> tuple[float, float]:
        """Latency and the time of the bytes, in microseconds, as measured."""
        latency_us, rate = self.measured or (self.latency_us, self.bytes_per_s * self._part(nbytes))
        sending_us = nbytes / rate * 1e6
        if self.chunks is None:
            return latency_us, sending_us
        round_bytes = self.chunks.round_bytes(nbytes)
        filling_us = self.chunks.depth * min(round_bytes, nbytes) / rate * 1e6
        return latency_us + filling_us, sending_us + nbytes / round_bytes * self.chunks.loop_us

    def _part(self, nbytes: int) -> float:
        at = max(nbytes >> 6, 1).bit_length() - 1
        return self.correction[at] if at < len(self.correction) else 1.0


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
    kind = kind_of(op) or next((kind for kind in ("broadcast", *EXCHANGES) if op.startswith(kind)), "send")
    way = min(ways(kind, where), key=lambda one: one.expected_us(nbytes))
    return way, *way.time_us(nbytes)


@cache
def ways(kind: str, where: Setting) -> tuple[NcclVariant, ...]:
    """All that NCCL chooses among."""
    if kind in ("all_to_all", "send", *EXCHANGES):
        pairs = {"all_to_all": _all_to_all, "send": _send}.get(kind)
        return (_exchange(kind, where) if pairs is None else pairs(where),)
    # LL128 wants NVLink inside (typeIntra at most PATH_NVB) and Volta or later
    protocols = (0, 1, 2) if where.fabric in ("nvswitch", "nvlink") or where.per_node == 1 else (0, 2)
    found = [_ring(kind, where, p) for p in protocols]
    if kind == "all_reduce":
        found += [_tree(where, p) for p in protocols] if where.nodes > 1 else []
        if where.switched and where.per_node > (2 if where.nodes == 1 else 3):
            found.append(_nvls(where) if where.nodes == 1 else _nvls_tree(where))
    return tuple(found)


def bus_bytes_per_s(where: Setting) -> float:
    """Return what passes each point of a ring. Across nodes, all the group's cards together."""
    inside = where.inside * _INSIDE_PART[where.generation]
    if where.nodes == 1:
        return inside
    cards = where.per_node * where.across * _CARD_PART
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
    inside_us, latency_us = _HARDWARE_US[_hardware(where)]["ring"][p], _BASE_US["ring"][p]
    if kind == "broadcast":
        latency_us += inside_us if nodes == 1 else _hop_us(where, p) + _network_us(where, p)
    else:
        rounds = steps // (ranks - 1)
        far = rounds * (nodes - 1)
        overhead_us = 0.0 if nodes == 1 else 3.0 if _PROTOCOLS[p] == "SIMPLE" else 1.0  # getNetOverhead, Intel
        latency_us += (steps - far) * max(inside_us, overhead_us) + far * _hop_us(where, p)
        # what a rank sends passes every link between nodes, where NCCL counts all but one
        latency_us += (far + (rounds if nodes > 1 and where.per_node > 1 else 0)) * _network_us(where, p)
    plateau = 64 * _channels(where) * ranks if nodes > 1 and kind == "all_reduce" and p == 2 else 0
    rate = bus * ranks / steps
    measured = (latency_us, rate * _RING_REACHED) if nodes > 1 and p == 2 and where.per_node > 1 else None
    if nodes == 1 and where.switched and p > 0:
        rate = bus_bytes_per_s(where) * _between(_SWITCHED_PART, ranks) * ranks / steps
        latency_us = _SWITCHED_BASE_US + _SWITCHED_STEP_US * (ranks - 1)
    elif nodes == 1 and where.switched and steps == ranks - 1:
        latency_us = _BASE_US["ring"][p] + steps * _GATHER_STEP_US
    return NcclVariant("ring", _PROTOCOLS[p], latency_us, rate, (), plateau, measured)


def _tree(where: Setting, p: int) -> NcclVariant:
    at, channels = min(where.nodes, 3) - 1, _channels(where)
    bus = bus_bytes_per_s(where)
    if where.nodes == 2:  # bwIntra; each card sends what its rank has once, where a ring's would twice
        bus = min(2 * bus, where.inside * _ACROSS_PART)
    bus = min(bus * 0.92, channels * _TREE_GB[where.generation][at] * 1e9)
    if _PROTOCOLS[p] == "LL":
        bus = min(bus / 3.8, _LL_NET_GB[0 if where.nodes == 2 else 1] * 1e9)
    elif _PROTOCOLS[p] == "LL128":
        bus = min(bus * 120 / 128, channels * _TREE_LL128_GB[where.generation][at] * 1e9)
    inside_us = _HARDWARE_US[_hardware(where)]["tree"][p]
    hops_us = (where.nodes.bit_length() - 1) * (_HARDWARE_US["net"]["tree"][p] + _network_us(where, p))
    latency_us = _BASE_US["tree"][p] + 2 * ((where.per_node - 1) * inside_us + hops_us)
    correction = _TREE_CORRECTION[p]
    if _PROTOCOLS[p] == "LL128" and where.nodes > 2 and where.switched:
        correction = (*correction[:16], *[_TREE_REACHED] * 16)
    return NcclVariant("tree", _PROTOCOLS[p], latency_us, bus * 0.85 * 0.5, correction)


def _nvls(where: Setting) -> NcclVariant:
    """NVLS on one node."""
    links = where.inside * _NVLS_PART[where.generation]
    sizes = ((131072, 64), (65536, 8), (32768, 2), (16384, 0))
    chunks = Chunks(_NVLS_CHANNELS[where.generation][0] * where.ranks, sizes, _LOOP_US[0], _DEPTH)
    return NcclVariant(
        "nvls", "SIMPLE", _NVLS_US, links * 5 / 6, measured=(_NVLS_US, links * _NVLS_REACHED), chunks=chunks
    )


def _nvls_tree(where: Setting) -> NcclVariant:
    levels, blackwell = where.nodes.bit_length(), where.generation == "blackwell"
    cards = bus_bytes_per_s(where) / (1 if where.nodes == 2 else 2)
    links = where.inside * _NVLS_PART[where.generation]
    latency_us = _NVLS_US + 2 * (levels - 1) * (_NVLS_TREE_NET_US + 2 * where.network_us)
    measured = latency_us, min(links * _NVLS_REACHED, cards * _RING_REACHED)
    sizes = ((65536, 1), (32768, 0)) if where.nodes > 3 or blackwell else ((131072, 4), (65536, 1), (32768, 0))
    at_once = _NVLS_CHANNELS[where.generation][min(where.nodes, 3) - 1] * where.per_node
    chunks = Chunks(at_once, sizes, _LOOP_US[1], _TREE_DEPTH * levels)
    correction = _TREE_CORRECTION[2] if blackwell else ()
    return NcclVariant("nvls-tree", "SIMPLE", latency_us, min(links, cards) * 5 / 6, correction, 0, measured, chunks)


def _all_to_all(where: Setting) -> NcclVariant:
    """Each rank sends to each other one: the slowest link decides."""
    n = where.ranks
    if where.nodes > 1:
        rate = where.across * (1 - _ALL_TO_ALL_OVERHEAD / where.nodes) * n / (n - where.per_node)
        latency_us = _between(_ALL_TO_ALL_US, where.nodes) * max(1.0, where.nodes / 32) + where.network_us
    elif where.switched:
        rate, latency_us = where.inside * _ALL_TO_ALL_PART, _ALL_TO_ALL_INSIDE_US[where.generation]
    else:
        rate = where.inside * _INSIDE_PART[where.generation] * 0.7 * n / (n - 1)
        latency_us = 8.4 + n * _HARDWARE_US[_hardware(where)]["ring"][2]
    return NcclVariant("pairs", "SIMPLE", latency_us, rate)


def _send(where: Setting) -> NcclVariant:
    if where.nodes == 1:
        return NcclVariant("pairs", "SIMPLE", 8.4 + _HARDWARE_US[_hardware(where)]["ring"][2], bus_bytes_per_s(where))
    hop_us = _hop_us(where, 2) + _network_us(where, 2)
    return NcclVariant("pairs", "SIMPLE", 8.4 + hop_us, where.across * _CARD_PART)


def _exchange(kind: str, where: Setting) -> NcclVariant:
    """DeepEP's: a token goes once to each node that has experts of it, and on from there to its ranks.

    Low-latency kernels send it to each expert. Bytes are those of a rank's tokens, once for each rank that they go to.
    """
    sent = 1.0 if kind.startswith("low") else _reached(min(where.nodes, _EXPERT_NODES)) / _reached(where.ranks)
    inside, across = where.inside * _EXCHANGE_INSIDE_PART, where.across * _EXCHANGE_ACROSS_PART
    rate = inside if where.nodes == 1 else min(inside, across / sent * where.nodes / (where.nodes - 1))
    return NcclVariant("pairs", "SIMPLE", _EXCHANGE_US + where.network_us, rate)


def _reached(places: int) -> float:
    """How many of so many places have an expert of a token."""
    return places * (1 - (1 - 1 / places) ** _EXPERTS)


def _hardware(where: Setting) -> str:
    return "nvlink" if where.fabric in ("nvswitch", "nvlink") else "pcie"


def _hop_us(where: Setting, p: int) -> float:
    """A step of a ring across nodes; with one rank per node nothing hides it: the tree's."""
    return _HARDWARE_US["net"]["tree" if where.per_node == 1 else "ring"][p]


def _network_us(where: Setting, p: int) -> float:
    """Return what the network adds to that: twice for SIMPLE, which flushes."""
    return where.network_us * (2 if _PROTOCOLS[p] == "SIMPLE" else 1)


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
