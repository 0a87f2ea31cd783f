"""What the nodes take that rewrites make: by the cost model that priced the rest, so that old and new compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from overlap_sched.cost.cluster import Cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.compute import Compute
from overlap_sched.cost.model import Collective, CostModel, FinishingModel, LaunchingModel, Roofline
from overlap_sched.cost.repricing import placed_on
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Group, Problem

OUT = "host"
"""The stream (as a process group) of copies in both directions, as ``torch.ops.ao`` has one transfer stream per device
(``torch/_functorch/_activation_offloading/offload_ops.py``, torch 2.13 and 2.15)."""


@dataclass(frozen=True)
class HostLink:
    """How fast a device copies to and from pinned host memory.

    Attributes:
        name: For people.
        bytes_per_s: In one direction, as a copy of some megabytes reaches it.
        latency_us: Of one copy.
    """

    name: str
    bytes_per_s: float
    latency_us: float = 10.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and self.latency_us >= 0):
            raise OptionsError(
                f"host link {self.name!r} has {self.bytes_per_s} bytes per second and {self.latency_us} us; a rate is "
                "positive, a latency not negative."
            )

    def copy_us(self, nbytes: int) -> float:
        """One copy of so many bytes, in one direction."""
        return self.latency_us + nbytes / self.bytes_per_s * 1e6


PCIE_5 = HostLink("PCIe 5.0 x16", 51.2e9)
"""NVIDIA H100 data sheet: PCIe Gen5, 128 GB/s in both directions, so 64 GB/s in one; 0.8 of it, as
:attr:`overlap_sched.cost.model.Device.bytes_efficiency` has it for streaming kernels."""

PCIE_4 = HostLink("PCIe 4.0 x16", 25.6e9)
"""NVIDIA A100 data sheet and GA102 whitepaper (RTX 3090): PCIe Gen4, 64 GB/s in both directions; 0.8 of one."""


@dataclass(frozen=True)
class Prices:
    """Times of new nodes, in microseconds.

    Attributes:
        model: Of the device and the network.
        comm_scale: Every collective takes so many times as long, as ``--comm-scale`` says.
        host: Of copies to and from host memory.
        scales: Per operator (coalesced or not) and group, how many times what the model says such a collective takes,
            where times that were given say so; 1.0 of all others.
    """

    model: CostModel
    comm_scale: float = 1.0
    host: HostLink = PCIE_5
    scales: Mapping[tuple[str, Group], float] = field(default_factory=dict)

    def collective_us(self, op: str, nbytes: int, group: Group) -> float:
        """A collective whose larger side has so many bytes: of several coalesced ones, all together."""
        scale = self.comm_scale * self.scales.get((op.removesuffix("_coalesced"), group), 1.0)
        return self.model.collective_us(Collective(op, nbytes, group)) * scale

    def copy_us(self, op: str, nbytes: int) -> float:
        """A copy that reads and writes so many bytes, both together."""
        return self.model.compute_us(Compute(op, 0, nbytes))

    def launch_us(self, op: str, nbytes: int, group: Group) -> float:
        """Return what launching takes of the compute stream; 0.0 where that is not known, or not of it."""
        return self.model.launch_us(Collective(op, nbytes, group)) if isinstance(self.model, LaunchingModel) else 0.0

    def finish_us(self, op: str, nbytes: int, group: Group) -> float:
        """Return what the wait for one that is done takes of it; 0.0 as for :meth:`launch_us`."""
        return self.model.finish_us(Collective(op, nbytes, group)) if isinstance(self.model, FinishingModel) else 0.0


UNPRICED = Prices(Roofline())


def on_cluster(problem: Problem, cluster: Cluster, comm_scale: float = 1.0) -> tuple[Problem, Prices]:
    """A problem with all its collectives priced for a cluster, and the prices of new ones.

    A problem file has its own times and no model behind them: merged and unmerged collectives compare only where one
    model prices both. A group that the file puts inside a node stays there, the others are placed on the cluster's
    nodes. Times of compute and contention stay the problem's own.

    Raises:
        CostError: A process group does not fit the cluster.
    """
    prices = Prices(model_of(cluster), comm_scale)
    placed = placed_on(problem, cluster).groups
    groups = {name: group if group.intra_node else placed[name] for name, group in problem.groups.items()}
    nodes = list(problem.nodes)
    for v, group in ((v, nodes[v].group) for v in problem.collectives):
        if group is not None:
            nodes[v] = nodes[v]._replace(time_us=prices.collective_us(nodes[v].op, nodes[v].bytes, groups[group]))
    return replace(problem, nodes=tuple(nodes), groups=groups), prices
