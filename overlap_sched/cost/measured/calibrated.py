"""The cluster that measurements describe: rates of its device and links, for what no table covers."""

from collections.abc import Callable, Iterable

from overlap_sched.cost.cluster.description import Across, Cluster, Fabric, IntraNodeLink
from overlap_sched.cost.device import H100, XEON_8480, Device
from overlap_sched.cost.measured.table import CollectiveTime, KernelTime, Tables
from overlap_sched.cost.measured.tabled import COPY

_PCIE_BYTES_PER_S = 64e9
"""No PCIe 5 slot of 16 lanes gives more in one direction: a faster link inside a node is NVLink."""


def calibrated(device: str, ranks_per_node: int, tables: Tables, source: str) -> Cluster:
    """A cluster with measured tables, and rates that are the best of them."""
    on_cpu = device == "cpu"
    link = _link([one for one in tables.collectives if one.nodes == 1])
    bytes_per_s, latency_us = link or (_device(device, tables).peak_bytes_per_s, 0.0)
    fabric: Fabric = "memory" if on_cpu else "nvlink" if bytes_per_s > _PCIE_BYTES_PER_S else "pcie"
    return Cluster(
        name=_name(device),
        device=_device(device, tables),
        ranks_per_node=ranks_per_node,
        inside=IntraNodeLink(fabric, bytes_per_s, latency_us, "measured" if link else "not measured: that of memory"),
        across=_across(tables, ranks_per_node),
        library="formula",
        tables=tables,
        source=source,
    )


def _name(device: str) -> str:
    return f"measured-{device.replace(' ', '-').lower()}"


def _device(name: str, tables: Tables) -> Device:
    basis = XEON_8480 if name == "cpu" else H100
    copies = [one for one in tables.kernels if one.op == COPY]
    flops = _best((one for one in tables.kernels if one.flops), lambda one: round(one.flops / one.time_us * 1e6))
    # the largest copy: smaller ones stay in caches
    largest = max(copies, key=lambda one: one.bytes, default=None)
    return Device(
        name,
        flops or basis.peak_flops_per_s,
        basis.peak_bytes_per_s if largest is None else round(largest.bytes / largest.time_us * 1e6),
        flops_efficiency=1.0 if flops else basis.flops_efficiency,
        bytes_efficiency=basis.bytes_efficiency if largest is None else 1.0,
        kernel_us=min((one.time_us for one in copies), default=basis.kernel_us),
    )


def _best(kernels: Iterable[KernelTime], rate: Callable[[KernelTime], float]) -> float:
    return max(map(rate, kernels), default=0.0)


def _across(tables: Tables, ranks_per_node: int) -> Across | None:
    """As if each node had one card, which all of its ranks share."""
    link = _link([one for one in tables.collectives if one.nodes > 1])
    if link is None:
        return None
    return Across(link[0] * ranks_per_node, 1, link[1], source="measured, all cards of a node together")


def _link(ones: Iterable[CollectiveTime]) -> tuple[float, float] | None:
    """Bytes per second and latency of a ring that takes as long as the all_gathers of the most ranks that were timed.

    ``None``: there are fewer than two sizes.
    """
    gathers = [one for one in ones if one.kind == "all_gather"]
    ranks = max((one.ranks for one in gathers), default=0)
    sizes = sorted((one.bytes, one.time_us) for one in gathers if one.ranks == ranks)
    if len(sizes) < 2 or ranks < 2:
        return None
    (least, least_us), (most, most_us) = sizes[0], sizes[-1]
    sent = (most - least) * (ranks - 1) / ranks
    return round(sent / max(most_us - least_us, 1e-3) * 1e6), least_us
