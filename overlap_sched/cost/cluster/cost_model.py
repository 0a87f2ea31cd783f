"""The cost model of a cluster: compute by its device, collectives as measured, by NCCL's tuning, or by a formula."""

from dataclasses import dataclass

from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.cost.device import Device
from overlap_sched.cost.measured.tabled import TableModel
from overlap_sched.cost.model import Collective, Compute, ExplainingModel, PricedModel, Roofline
from overlap_sched.cost.nccl import nccl_us, setting
from overlap_sched.cost.price import FREE, Price, Source
from overlap_sched.problem import Group


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
        nodes = nodes_of(self.cluster, work.group)
        if self.cluster.library == "nccl":
            _, latency_us, sending_us = nccl_us(work.op, work.bytes, setting(self.cluster, work.group.size, nodes))
        else:
            latency_us, sending_us = _formula(self.cluster, work, nodes)
        bound = "latency" if latency_us > sending_us else "bandwidth"
        source: Source = "nccl" if self.cluster.library == "nccl" else "roofline"
        return Price(latency_us + sending_us, source, bound)


def nodes_of(cluster: Cluster, group: Group) -> int:
    """On how many nodes a group's ranks are: as it says, else as few as can hold them."""
    if group.intra_node or cluster.across is None:
        return 1
    return group.nodes or max(2, -(-group.size // cluster.ranks_per_node))


def model_of(cluster: Cluster) -> ExplainingModel:
    """The cost model of a cluster: what was measured goes before all else.

    In one machine without GPUs (fabric ``memory``) the thread that computes launches collectives, too.
    """
    formulas = ClusterModel(cluster)
    if not cluster.tables:
        return formulas
    return TableModel(cluster.tables, formulas, on_host=cluster.inside.fabric == "memory")


def _formula(cluster: Cluster, work: Collective, nodes: int) -> tuple[float, float]:
    """Latency, and a ring at the bandwidth of the slowest link: (n - 1) / n of the larger side, once or twice."""
    inside, across, n = cluster.inside, cluster.across, work.group.size
    latency_us, rate = inside.latency_us, inside.bytes_per_s
    if nodes > 1 and across is not None:
        share = cluster.across_bytes_per_s
        cards = share if work.op.startswith("all_to_all") else share * -(-n // nodes)
        latency_us, rate = latency_us + across.latency_us, min(rate, cards)
    rounds = 2 if work.op.startswith(("all_reduce", "allreduce")) else 1
    return latency_us, rounds * work.bytes * (n - 1) / n / rate * 1e6
