"""The link between a device and pinned host memory: what an offload and a reload take."""

from dataclasses import dataclass

from overlap_sched.errors import OptionsError

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
