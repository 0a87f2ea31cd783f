"""Devices (published peak rates, and what part of them a kernel reaches), and networks (latency and bandwidth)."""

from typing import NamedTuple

from overlap_sched.errors import OptionsError
from overlap_sched.problem import Group


class Device(NamedTuple):
    """What one accelerator (or CPU socket) can do.

    Attributes:
        name: For people and for :func:`device_named`.
        peak_flops_per_s: Dense matrix rate in 16 bits, without sparsity.
        peak_bytes_per_s: Memory bandwidth.
        flops_efficiency: Part of ``peak_flops_per_s`` that a large matmul reaches (0 to 1).
        bytes_efficiency: Part of ``peak_bytes_per_s`` that a streaming kernel reaches (0 to 1).
        kernel_us: No kernel takes less: launch and tail of an empty one.
        memory_bytes: What it has, for reports; 0: not known.
    """

    name: str
    peak_flops_per_s: float
    peak_bytes_per_s: float
    flops_efficiency: float = 0.6
    bytes_efficiency: float = 0.8
    kernel_us: float = 2.0
    memory_bytes: int = 0

    @property
    def flops_per_s(self) -> float:
        """Rate that a large matmul reaches."""
        return self.peak_flops_per_s * self.flops_efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth that a streaming kernel reaches."""
        return self.peak_bytes_per_s * self.bytes_efficiency


H100 = Device("H100", 990e12, 3.35e12, memory_bytes=80 * 10**9)
"""H100 SXM5. NVIDIA H100 data sheet: BF16 1,979 TFLOPS with sparsity, so 990 dense; 3.35 TB/s. With the default
efficiencies, 594 TFLOPS and 2.68 TB/s. 80 GB."""

H200 = Device("H200", 990e12, 4.8e12, memory_bytes=141 * 10**9)
"""H200 SXM. NVIDIA H200 data sheet: the H100's tensor cores; 4.8 TB/s, 141 GB."""

A100 = Device("A100", 312e12, 2.039e12, memory_bytes=80 * 10**9)
"""A100 SXM 80 GB. NVIDIA A100 data sheet: BF16 312 TFLOPS dense; 2,039 GB/s."""

XEON_8480 = Device("Xeon-8480+", 7.168e12, 307.2e9)
"""One socket Xeon Platinum 8480+, without AMX. Intel's product page: 56 cores, base 2.0 GHz; two 512-bit FMA units make
64 single-precision operations a cycle and core; eight channels of DDR5-4800 are 307.2 GB/s."""

RTX_3090 = Device("RTX-3090", 71e12, 936e9, memory_bytes=24 * 10**9)
"""GeForce RTX 3090 24 GB, in bfloat16. NVIDIA Ampere GA102 whitepaper V2, appendix A: BF16 with FP32 accumulate 71
TFLOPS dense; 936 GB/s."""

RTX_3090_TF32 = Device("RTX-3090-TF32", 35.6e12, 936e9, memory_bytes=24 * 10**9)
"""The same with float32 tensors, whose matmuls and convolutions run in TF32: 35.6 TFLOPS dense (the same table)."""

DEVICES = (H100, H200, A100, RTX_3090, RTX_3090_TF32, XEON_8480)


def device_named(name: str) -> Device:
    """The device of the table with this name, in any case; ``"cpu"`` is the Xeon.

    Raises:
        OptionsError: There is none.
    """
    wanted = name.lower()
    for device in DEVICES:
        if wanted == device.name.lower() or (wanted == "cpu" and device is XEON_8480):
            return device
    known = ", ".join(device.name for device in DEVICES)
    raise OptionsError(f"no device is named {name!r}; known are {known} and cpu. Or make your own: cost.Device(...).")


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
