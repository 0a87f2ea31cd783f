"""How fast this machine is, so that predicted times mean something on it: a roofline from a few measurements.

Rank 0's figures are used by every rank: no two measure the same, and orders must be equal.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from llama_repro.training.world import World
from overlap_sched.cost import Device, Link, Network, Roofline
from overlap_sched.distributed import broadcast_costs

_MATMUL, _COPY_BYTES = 512, 2**24
_SMALL_BYTES, _LARGE_BYTES = 2**12, 2**22
_REPEATS = 10


def measured_roofline(world: World, dtype: torch.dtype) -> Roofline:
    """Time a matmul, a copy, an empty kernel and two all_gathers; all ranks call it and get rank 0's roofline."""
    own = {**_compute_us(world.device, dtype), **_gather_us(world)}
    us = broadcast_costs(own, "training")
    matmul_flops = 2.0 * _MATMUL**3
    device = Device(
        f"measured {world.device.type}",
        peak_flops_per_s=matmul_flops / us["matmul"] * 1e6,
        peak_bytes_per_s=2.0 * _COPY_BYTES / us["copy"] * 1e6,
        flops_efficiency=1.0,
        bytes_efficiency=1.0,
        kernel_us=us["empty"],
    )
    share = (world.size - 1) / world.size
    if share == 0.0:
        return Roofline(device)
    rate = (_LARGE_BYTES - _SMALL_BYTES) * share / max(us["large"] - us["small"], 1.0) * 1e6
    link = Link(latency_us=us["small"], bytes_per_s=rate)
    return Roofline(device, Network(link, link))


def _compute_us(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    a = torch.ones(_MATMUL, _MATMUL, device=device, dtype=dtype)
    source = torch.ones(_COPY_BYTES, device=device, dtype=torch.uint8)
    target, tiny = torch.empty_like(source), torch.ones(1, device=device)
    return {
        "matmul": _fastest_us(lambda: a @ a, device),
        "copy": _fastest_us(lambda: target.copy_(source), device),
        "empty": _fastest_us(lambda: tiny.neg_(), device),
    }


def _gather_us(world: World) -> dict[str, float]:
    """Times of all_gathers whose results have these bytes; none in a world of one."""
    result = {}
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on
    for name, nbytes in (("small", _SMALL_BYTES), ("large", _LARGE_BYTES)) if world.size > 1 else ():
        length = nbytes // world.size
        part = torch.ones(length, device=world.device, dtype=torch.uint8)
        whole = torch.empty(length * world.size, device=world.device, dtype=torch.uint8)

        def gather(whole: torch.Tensor = whole, part: torch.Tensor = part) -> object:
            return all_gather(whole, part)

        result[name] = _fastest_us(gather, world.device)
    return result


def _fastest_us(run: Callable[[], object], device: torch.device) -> float:
    """The fastest of a few runs, each alone on the device, in microseconds: what else runs here only adds."""
    times = []
    for _ in range(_REPEATS):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        times.append((time.perf_counter() - began) * 1e6)
    return min(times)


def synchronize(device: torch.device) -> None:
    """Wait for the GPU; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
