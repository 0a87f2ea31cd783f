"""How fast this machine is, so that predicted times mean something on it: a few measurements, and formulas by them.

All ranks measure at the same time, as they will compute at the same time; and all get the same figures: orders must be
equal. What is measured, and how, is :mod:`overlap_sched.distributed.calibration`.
"""

import torch

from llama_repro.training.world import World
from overlap_sched.cost import Device, Link, Network, Roofline
from overlap_sched.cost.cluster import cluster_from_tables
from overlap_sched.cost.table import TableModel, Tables
from overlap_sched.distributed.calibration import (
    Division,
    Grid,
    WantedCollective,
    calls_in_grid,
    machine_on,
    measure,
)

_GRID = Grid(
    ((64, 64, 64), (256, 256, 256), (512, 512, 512), (512, 2048, 512)),
    ((1, 4, 64, 32), (1, 8, 256, 64)),
    tuple(2**k for k in range(12, 27, 2)),
)
_KINDS = ("all_gather", "reduce_scatter")
_SIZES = tuple(2**k for k in range(12, 23, 2))


def measured_model(world: World, dtype: torch.dtype) -> TableModel:
    """Time matmuls, attention, copies, gathers and scatters of a few sizes; all ranks call it and get one model."""
    collectives = [
        WantedCollective(kind, Division(world.size), size) for kind in _KINDS for size in _SIZES if world.size > 1
    ]
    kernels = calls_in_grid(_GRID, dtype, world.device)
    tables, _ = measure(machine_on(world.device), collectives, kernels, lambda text: None)
    cluster = cluster_from_tables(world.device.type, world.size, tables, "")
    link = Link(cluster.inside.latency_us, cluster.inside.bytes_per_s)
    return TableModel(tables, Roofline(cluster.device, Network(link, link)), on_host=world.device.type == "cpu")


def device_of(model: Roofline | TableModel) -> Device:
    """The rates of a model's formulas."""
    formulas = model.otherwise if isinstance(model, TableModel) else model
    if not isinstance(formulas, Roofline):
        raise TypeError(f"the formulas of {model} are no roofline")
    return formulas.device


def with_link(model: Roofline | TableModel, link: Link) -> TableModel:
    """The same machine with this link, inside a node and across nodes, for all collectives; a launch takes nothing."""
    kernels = model.tables.kernels if isinstance(model, TableModel) else ()
    return TableModel(Tables(kernels=kernels), Roofline(device_of(model), Network(link, link)))


def synchronize(device: torch.device) -> None:
    """Wait for the GPU; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
