"""Per-parameter sharding and tensor parallelism by raw functional collectives, so that they all are in the graph.

What fully sharded data parallelism does, spelled out::

    forward    fp32 shard -> bf16 -> all_gather_into_tensor -> wait -> full weight
    backward   bf16 gradient -> fp32 -> reduce_scatter_tensor (mean) -> wait -> fp32 gradient of the shard

Tensor parallelism shards the tokens between the blocks (sequence parallelism): gathered before a block, reduced and
scattered after it. Sequences are the first dimension, so that both are single collectives without copies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from llama_repro.capture.configs import LlamaConfig

_C10D = torch.ops._c10d_functional


@dataclass(frozen=True)
class Ranks:
    """A process group, as the functional collectives name it."""

    name: str
    size: int


@dataclass(frozen=True)
class Mesh:
    """The process groups that this rank is in; ``tp`` and ``cp`` are ``None`` without that kind of parallelism."""

    fsdp: Ranks
    tp: Ranks | None = None
    cp: Ranks | None = None


@contextmanager
def fake_world(size: int) -> Iterator[None]:
    """A world of ``size`` ranks in which nothing is sent: torch's ``fake`` process group, rank 0.

    Raises:
        RuntimeError: This process is in a real world already.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "a process group is initialized already: graphs are captured in a fake world of their own. "
            "Call torch.distributed.destroy_process_group() first, or capture in a process of its own."
        )
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_mesh(config: LlamaConfig) -> Mesh:
    """The groups of rank 0: tensor-parallel ranks are neighbours, so that they share a node."""
    world = dist.group.WORLD
    assert world is not None, "make_mesh runs inside fake_world"
    fsdp, tp, cp = Ranks(world.group_name, config.fsdp), None, None
    if config.tp > 1:
        fsdp = _ranks(range(0, config.world, config.tp))
        tp = _ranks(range(config.tp))
    if config.cp > 1:
        cp = _ranks(range(0, config.cp * config.tp, config.tp))
    return Mesh(fsdp, tp, cp)


def _ranks(members: range) -> Ranks:
    return Ranks(dist.new_group(list(members)).group_name, len(members))


def all_gather(x: Tensor, ranks: Ranks) -> Tensor:
    """Everybody's ``x``, one after the other along the first dimension."""
    return _C10D.wait_tensor(_C10D.all_gather_into_tensor(x, ranks.size, ranks.name))


def reduce_scatter(x: Tensor, ranks: Ranks, op: str = "sum") -> Tensor:
    """This rank's part (along the first dimension) of the reduction of everybody's ``x``."""
    return _C10D.wait_tensor(_C10D.reduce_scatter_tensor(x.contiguous(), op, ranks.size, ranks.name))


def all_reduce(x: Tensor, ranks: Ranks | None, op: str = "sum") -> Tensor:
    """The reduction of everybody's ``x``; ``x`` itself where there is nobody else."""
    return x if ranks is None else _C10D.wait_tensor(_C10D.all_reduce(x.contiguous(), op, ranks.name))


class GatherWeight(torch.autograd.Function):
    """Shard in, full weight of another type out; the gradient is reduced in fp32, and has the shard's type.

    ``op`` is how it is reduced. ``partial`` names the tensor-parallel ranks that hold parts of the gradient of a weight
    that they share.
    """

    @staticmethod
    def forward(
        ctx: Any, shard: Tensor, ranks: Ranks, dtype: torch.dtype, op: str = "sum", partial: Ranks | None = None
    ) -> Tensor:
        """Cast and gather."""
        ctx.ranks, ctx.dtype, ctx.op, ctx.partial = ranks, shard.dtype, op, partial
        return all_gather(shard.to(dtype), ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Reduce and scatter."""
        gradient = all_reduce(gradients[0].float(), ctx.partial)
        return reduce_scatter(gradient, ctx.ranks, ctx.op).to(ctx.dtype), None, None, None, None


class EnterBlock(torch.autograd.Function):
    """This rank's tokens in, all tokens out; backward sums and scatters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Ranks) -> Tensor:
        """Gather."""
        ctx.tp = tp
        return all_gather(x.contiguous(), tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Sum and scatter."""
        return reduce_scatter(gradients[0], ctx.tp), None


class LeaveBlock(torch.autograd.Function):
    """Every rank's part of the sum in, this rank's tokens of the sum out; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Ranks) -> Tensor:
        """Sum and scatter."""
        ctx.tp = tp
        return reduce_scatter(x, tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Gather."""
        return all_gather(gradients[0].contiguous(), ctx.tp), None


def enter_block(x: Tensor, tp: Ranks | None) -> Tensor:
    """Gather the tokens before a tensor-parallel block, or those that context-parallel ranks attend to."""
    return x if tp is None else EnterBlock.apply(x, tp)


def leave_block(x: Tensor, tp: Ranks | None) -> Tensor:
    """Sum and scatter the tokens after a tensor-parallel block."""
    return x if tp is None else LeaveBlock.apply(x, tp)
