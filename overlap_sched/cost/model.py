"""The small protocol behind which cost models stand, and the first of them: a roofline."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from overlap_sched.cost.device import H100, Device
from overlap_sched.cost.network import HGX, Network
from overlap_sched.problem import Group


class Compute(NamedTuple):
    """What a model is told of a compute step; fields may be added behind these.

    Attributes:
        op: Operator, as in ``Node.op``: ``"aten.mm.default"``.
        flops: Floating-point operations. bytes: read and written.
    """

    op: str
    flops: int
    bytes: int


class Collective(NamedTuple):
    """What a model is told of a collective.

    Attributes:
        op: Operator without its namespace: ``"all_gather_into_tensor"``.
        bytes: The larger of its input and its output.
        group: Where it runs.
    """

    op: str
    bytes: int
    group: Group


class CostModel(Protocol):
    """Times in microseconds, finite and not negative; the same facts give the same time on every rank."""

    def compute_us(self, work: Compute) -> float:
        """Time on the compute stream; 0.0 where nothing is computed, read or written."""

    def collective_us(self, work: Collective) -> float:
        """Time on the group's communication stream."""


@dataclass(frozen=True)
class Roofline:
    """Compute runs at the device's rate or its bandwidth, whichever is slower; collectives by latency and bandwidth.

    compute: max(flops / rate, bytes / bandwidth, ``kernel_us``); nothing to do (views, getitem) takes no time.
    collective: latency + bytes * (n - 1) / n / bandwidth, the time of a ring of n ranks that sends the larger side
    once (Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005); an
    all_reduce is a reduce_scatter and an all_gather, so twice the bytes.
    """

    device: Device = H100
    network: Network = HGX

    def compute_us(self, work: Compute) -> float:
        """See the class."""
        if not work.flops and not work.bytes:
            return 0.0
        device = self.device
        return max(work.flops / device.flops_per_s * 1e6, work.bytes / device.bytes_per_s * 1e6, device.kernel_us)

    def collective_us(self, work: Collective) -> float:
        """See the class."""
        link, ranks = self.network.link(work.group), work.group.size
        rounds = 2 if work.op.startswith(("all_reduce", "allreduce")) else 1
        return link.latency_us + rounds * work.bytes * (ranks - 1) / ranks / link.bytes_per_s * 1e6
