"""The plug-in of ``torch.compile`` in a real process group of one rank: NCCL on a GPU, gloo on the CPU.

One rank's collectives are copies, but they are real ones: the operators, the process group and its stream, and the code
that Inductor generates around them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import overlap_sched
from llama_repro.gpu.values import same_bits
from llama_repro.training.world import world_of
from overlap_sched.cost import H100, Link, Network, Roofline

_BLOCKS, _WIDTH, _TOKENS = 3, 256, 64
_SLOW = Roofline(H100, Network(Link(50.0, 1e9), Link(50.0, 1e9)))
"""A cost model in which one rank's collectives are worth hiding."""


@dataclass(frozen=True)
class PluginCheck:
    """What came of it.

    Attributes:
        backend: Of the process group.
        same_results: Whether loss and gradients are bitwise the same with and without the plug-in.
        changed: How many graphs got another order.
        lines: What the plug-in says of each graph.
    """

    backend: str
    same_results: bool
    changed: int
    lines: tuple[str, ...]


def check_plugin(device: torch.device) -> PluginCheck:
    """Compile a small sharded network without and with the plug-in, and compare what it computes."""
    with world_of("cuda" if device.type == "cuda" else "cpu") as world:
        without = _step(device, nullcontext)
        overlap_sched.clear_reports()
        options = overlap_sched.Options(headroom="50%")
        given = _step(device, lambda: overlap_sched.enabled(options, model=_SLOW))
        reports = overlap_sched.reports()
    changed = sum(report.report.changed for report in reports)
    return PluginCheck(world.backend, same_bits(without, given), changed, tuple(report.line for report in reports))


@contextmanager
def no_caches() -> Iterator[None]:
    """Both caches off: behind a hit no pass is called."""
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def _step(device: torch.device, switched: Callable[[], Any]) -> list[Tensor]:
    """Loss and gradients of one step, compiled again and without caches."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, device=device).normal_(0.0, rows**-0.5, generator=generator)

    x = drawn(_TOKENS, _WIDTH).requires_grad_()
    shards = [drawn(*size).requires_grad_() for size in ((_WIDTH, 2 * _WIDTH), (2 * _WIDTH, _WIDTH)) * _BLOCKS]
    torch.compiler.reset()
    with no_caches(), switched():
        loss = torch.compile(_loss, fullgraph=True)(x, shards)
        loss.backward()
    torch.compiler.reset()
    gradients = [tensor.grad for tensor in (x, *shards)]
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _loss(x: Tensor, shards: list[Tensor]) -> Tensor:
    for up, down in zip(shards[::2], shards[1::2], strict=True):
        x = checkpoint(_block, x, up, down, use_reentrant=False)  # weights are gathered again in the backward
    return x.square().mean()


def _block(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    hidden = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return x + torch.nn.functional.silu(hidden @ _gathered(up)) @ _gathered(down)


def _gathered(shard: Tensor) -> Tensor:
    functional, world = torch.ops._c10d_functional, dist.group.WORLD
    assert world is not None, "a step runs inside a process group"
    return functional.wait_tensor(functional.all_gather_into_tensor(shard, 1, world.group_name))
