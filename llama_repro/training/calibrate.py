"""How fast this machine is, so that predicted times mean something on it: a roofline from a few measurements.

All ranks measure at the same time, as they will compute at the same time: they share caches, memory and clocks. Rank
0's figures are used by every rank: no two measure the same, and orders must be equal.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from llama_repro.training.world import World
from overlap_sched.cost import Collective, Compute, Device, Link, Network, Roofline
from overlap_sched.distributed import broadcast_costs
from overlap_sched.fx.flops import formula
from overlap_sched.inductor.gloo import safe_gathers

_MATMUL, _COPY_BYTES = 512, 2**24
_SMALL_BYTES, _LARGE_BYTES = 2**12, 2**22
_ATTENTION = (1, 8, 256, 64)
"""Batch, heads, sequence, width of a head."""
_REPEATS = 20
_FUNCTIONAL = torch.ops._c10d_functional
_COLLECTIVES = ("all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True)
class Measured(Roofline):
    """A roofline in which some operators have rates of their own.

    A CPU's attention is far slower than its matmuls. gloo's reduce_scatter (torch 2.13) is a copy, an all_reduce of the
    whole input, and another copy.

    Attributes:
        flops_per_s: Operators, as in ``Compute.op``, and their rates.
        links: Operators, as in ``Collective.op``, and the link that they see.
    """

    flops_per_s: tuple[tuple[str, float], ...] = ()
    links: tuple[tuple[str, Link], ...] = ()

    def compute_us(self, work: Compute) -> float:
        """Microseconds."""
        own = dict(self.flops_per_s).get(work.op)
        return super().compute_us(work) if own is None else max(work.flops / own * 1e6, self.device.kernel_us)

    def collective_us(self, work: Collective) -> float:
        """Microseconds."""
        own = dict(self.links).get(work.op)
        return super().collective_us(work) if own is None else Roofline(network=Network(own, own)).collective_us(work)


def measured_roofline(world: World, dtype: torch.dtype) -> Roofline:
    """Time a matmul, a copy, an empty kernel, attention and collectives; all ranks call it and get rank 0's figures."""
    attention = _attention_calls(dtype) if world.device.type == "cpu" else {}
    dist.barrier()
    own = {**_compute_us(world.device, dtype), **_collectives_us(world)}
    own |= {name: _typical_us(call, world.device) for name, (call, _) in attention.items()}
    us = broadcast_costs(own, "training")
    rates = tuple((name, flops / us[name] * 1e6) for name, (_, flops) in attention.items())
    matmul_flops = 2.0 * _MATMUL**3
    device = Device(
        f"measured {world.device.type}",
        peak_flops_per_s=matmul_flops / us["matmul"] * 1e6,
        peak_bytes_per_s=2.0 * _COPY_BYTES / us["copy"] * 1e6,
        flops_efficiency=1.0,
        bytes_efficiency=1.0,
        kernel_us=us["empty"],
    )
    if world.size == 1:
        return Measured(device, flops_per_s=rates)
    links = {name: _link(us[f"small {name}"], us[f"large {name}"], world.size) for name in _COLLECTIVES}
    gather = links["all_gather_into_tensor"]
    return Measured(device, Network(gather, gather), rates, tuple(links.items()))


def _link(small_us: float, large_us: float, ranks: int) -> Link:
    """The link by which the cost model finds these times again."""
    sent = (_LARGE_BYTES - _SMALL_BYTES) * (ranks - 1) / ranks
    return Link(latency_us=small_us, bytes_per_s=sent / max(large_us - small_us, 1.0) * 1e6)


def _attention_calls(dtype: torch.dtype) -> dict[str, tuple[Callable[[], object], int]]:
    """The CPU's attention and its backward: per operator a call and its floating-point operations."""
    names = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
    forward, backward = (getattr(torch.ops.aten, name).default for name in names)
    x = torch.ones(_ATTENTION, dtype=dtype)
    out, logsumexp = forward(x, x, x, 0.0, True)
    arguments = {forward: (x, x, x, 0.0, True), backward: (x, x, x, x, out, logsumexp, 0.0, True)}
    return {str(op): (partial(op, *given), _flops(op, given)) for op, given in arguments.items()}


def _flops(op: Any, given: tuple[Any, ...]) -> int:
    """Operations as the scheduler counts them; 1 where it has no formula, so that nothing is divided by 0."""
    count = formula(op)
    return 1 if count is None else count(*given)


def _compute_us(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    a = torch.ones(_MATMUL, _MATMUL, device=device, dtype=dtype)
    source = torch.ones(_COPY_BYTES, device=device, dtype=torch.uint8)
    target, tiny = torch.empty_like(source), torch.ones(1, device=device)
    return {
        "matmul": _typical_us(lambda: a @ a, device),
        "copy": _typical_us(lambda: target.copy_(source), device),
        "empty": _typical_us(lambda: tiny.neg_(), device),
    }


def _collectives_us(world: World) -> dict[str, float]:
    """Times of collectives whose larger side has these bytes; none in a world of one."""
    result = {}
    group = dist.group.WORLD.group_name
    for size, nbytes in (("small", _SMALL_BYTES), ("large", _LARGE_BYTES)) if world.size > 1 else ():
        part = torch.ones(nbytes // 4 // world.size, device=world.device)
        whole = torch.ones(nbytes // 4, device=world.device)
        calls = (
            partial(_FUNCTIONAL.all_gather_into_tensor, part, world.size, group),
            partial(_FUNCTIONAL.reduce_scatter_tensor, whole, "sum", world.size, group),
        )
        with safe_gathers():
            for name, call in zip(_COLLECTIVES, calls, strict=True):
                result[f"{size} {name}"] = _typical_us(partial(_waited, call), world.device)
    return result


def _waited(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = _FUNCTIONAL.wait_tensor(call())
    return result


def _typical_us(run: Callable[[], object], device: torch.device) -> float:
    """The lower quartile of a few runs, in microseconds: little of what else runs here, but not the luckiest one."""
    times = []
    for _ in range(_REPEATS):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.quantiles(times, n=4)[0]


def synchronize(device: torch.device) -> None:
    """Wait for the GPU; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
