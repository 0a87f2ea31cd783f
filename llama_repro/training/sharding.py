"""The model's parameters as shards, by :func:`overlap_sched.distributed.shard`: all collectives are in the graph.

    fsdp    every parameter sharded over all ranks
    2d      tensor-parallel ranks divide the matrices of the blocks, whose parts the other ranks shard; all else is
            sharded over all ranks

Gathered weights are not saved for backward but gathered again there. Gradients are means over all ranks, reduced in
fp32.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.parallelism import Ranks
from llama_repro.training.net import Llama
from overlap_sched.distributed import shard

Kind = Literal["fsdp", "2d"]
KINDS: tuple[Kind, ...] = ("fsdp", "2d")

TENSOR_PARALLEL = {"wq": 0, "wk": 0, "wv": 0, "w1": 0, "w3": 0, "wo": 1, "w2": 1}
"""Matrices that tensor-parallel ranks divide, and along which dimension."""

_SCALE = 0.02
"""Standard deviation of the first matrices."""


@dataclass(frozen=True)
class Place:
    """Where this rank stands.

    Attributes:
        world: The mesh of all ranks.
        fsdp: Those that share the shards of one tensor-parallel part; of one dimension, like ``world``.
        tp: Those that divide the blocks; ``None`` without tensor parallelism.
        fsdp_rank, tp_rank: This rank's index in them.
    """

    world: DeviceMesh
    fsdp: DeviceMesh
    tp: Ranks | None = None
    fsdp_rank: int = 0
    tp_rank: int = 0


def shard_(
    model: Llama, config: LlamaConfig, place: Place, dtype: torch.dtype, seed: int, device: torch.device
) -> None:
    """Shard ``model`` (made on ``meta``) and fill in this rank's first values.

    They depend on the parameter's name and ``seed`` alone, not on how many ranks there are; one whole parameter is in
    memory at a time.

    Args:
        model: Changed in place.
        config: Its sizes.
        place: Where this rank stands.
        dtype: The type in which weights are gathered and used.
        seed: Of the first values.
        device: Where shards live.
    """
    shapes = {name: _whole_shape(name, parameter, config) for name, parameter in model.named_parameters()}
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)  # rotations stay in fp32
    if place.tp is not None:
        shard([norm for block in model.blocks for norm in block.norms], place.world, mp_policy=policy)
        for block in model.blocks:
            shard(block, place.fsdp, mp_policy=policy)
            block.set_gradient_divide_factor(float(place.world.size()))  # its gradients are of its neighbours, too
    shard(model, place.world, mp_policy=policy)
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        whole = first_value(name if "." in name else f".{name}", shapes[name], seed)
        mine, mesh = tensor_parallel_part(whole, name, place), parameter.device_mesh
        parameter.detach().to_local().copy_(mine.chunk(mesh.size())[mesh.get_local_rank()])


def tensor_parallel_part(whole: Tensor, name: str, place: Place) -> Tensor:
    """This rank's part of a whole parameter: of its rows or columns; all of what tensor-parallel ranks share."""
    divided = TENSOR_PARALLEL.get(name.rpartition(".")[2])
    return whole if place.tp is None or divided is None else whole.chunk(place.tp.size, divided)[place.tp_rank]


def first_value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A whole parameter before training: ones for norms, small random numbers for matrices; fp32 on the CPU."""
    if len(shape) == 1:
        return torch.ones(shape)
    own = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")
    return torch.randn(shape, generator=torch.Generator().manual_seed(own)) * _SCALE


def local_shards(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """This rank's parameters as plain tensors, by name."""
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        yield name, value.to_local() if isinstance(value, DTensor) else value


def _whole_shape(name: str, parameter: Tensor, config: LlamaConfig) -> tuple[int, ...]:
    shape, divided = list(parameter.shape), TENSOR_PARALLEL.get(name.rpartition(".")[2])
    if divided is not None:
        shape[divided] *= config.tp
    return tuple(shape)
