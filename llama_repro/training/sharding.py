"""Every parameter as a shard, gathered by a property in its place: all collectives are in the compiled graph.

    raw      wait_tensor(all_gather_into_tensor(shard)); backward reduces and scatters in fp32
    dtensor  DTensor: redistribute(Replicate).to_local(grad_placements=[Partial()])
    2d       raw; tensor-parallel ranks divide the matrices of the blocks, and all else is sharded over all ranks

After SimpleFSDP (Zhang et al. 2024, arXiv 2411.00284) and its code in torchtitan. Gathered weights are not saved for
backward but gathered again there (a checkpoint policy that marks the gather alone). Gradients are *summed* over ranks:
the loss is divided by the number of ranks before backward.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.parallelism import GatherWeight, Ranks

Kind = Literal["raw", "dtensor", "2d"]
KINDS: tuple[Kind, ...] = ("raw", "dtensor", "2d")

TENSOR_PARALLEL = {"wq": 0, "wk": 0, "wv": 0, "w1": 0, "w3": 0, "wo": 1, "w2": 1}
"""Matrices that tensor-parallel ranks divide, and along which dimension."""

_SCALE = 0.02
"""Standard deviation of the first matrices."""


@dataclass(frozen=True)
class Place:
    """Where this rank stands.

    Attributes:
        world: All ranks. fsdp: those that share the shards of one tensor-parallel part.
        tp: Those that divide the blocks; ``None`` without tensor parallelism.
        fsdp_rank, tp_rank: This rank's index in them. Its rank in the world is ``fsdp_rank * tp + tp_rank``.
        mesh: The mesh of ``dtensor``; else ``None``.
    """

    world: Ranks
    fsdp: Ranks
    tp: Ranks | None = None
    fsdp_rank: int = 0
    tp_rank: int = 0
    mesh: DeviceMesh | None = None

    @property
    def rank(self) -> int:
        """In the world."""
        return self.fsdp_rank * (self.tp.size if self.tp else 1) + self.tp_rank


def gather_raw(shard: Tensor, ranks: Ranks, dtype: torch.dtype) -> Tensor:
    """The full weight by raw functional collectives; the shard itself, cast, where there is one rank."""
    return shard.to(dtype) if ranks.size == 1 else GatherWeight.apply(shard, ranks, dtype)


def gather_dtensor(shard: DTensor, dtype: torch.dtype) -> Tensor:
    """The full weight by DTensor; backward reduces and scatters in the shard's own type."""
    full = shard.redistribute(placements=[Replicate()], forward_dtype=dtype, backward_dtype=shard.dtype)
    return full.to_local(grad_placements=[Partial()])


def shard_(
    model: nn.Module, config: LlamaConfig, place: Place, dtype: torch.dtype, seed: int, device: torch.device
) -> None:
    """Fill ``model`` (made on ``meta``) with this rank's shards, each with a property in its place that gathers it.

    The first values depend on the parameter's name and ``seed`` alone, not on how many ranks there are; one whole
    parameter is in memory at a time.

    Args:
        model: A :class:`~llama_repro.training.net.Llama`.
        config: Its sizes.
        place: Where this rank stands.
        dtype: The type in which weights are gathered and used.
        seed: Of the first values.
        device: Where shards live.
    """
    for prefix, module in list(model.named_modules()):
        own = list(module.named_parameters(recurse=False))
        gathers: dict[str, Callable[[Any], Tensor]] = {}
        for name, parameter in own:
            whole = first_value(f"{prefix}.{name}", _whole_shape(name, parameter, config), seed)
            shard = shard_of(whole, name, place).to(device)
            if place.mesh is not None:
                shard = DTensor.from_local(shard, place.mesh, [Shard(0)], run_check=False)
                gathers[name] = partial(gather_dtensor, dtype=dtype)
            else:
                gathers[name] = partial(gather_raw, ranks=ranks_of(name, place), dtype=dtype)
            module.register_parameter(name, nn.Parameter(shard))
        if own:
            _gather_on_access(module, gathers)


def ranks_of(name: str, place: Place) -> Ranks:
    """Over which ranks a parameter is sharded: what tensor-parallel ranks share is sharded over them, too."""
    return place.fsdp if name in TENSOR_PARALLEL else place.world


def shard_of(whole: Tensor, name: str, place: Place) -> Tensor:
    """This rank's part of a whole parameter: its tensor-parallel part, of which its rows."""
    index = place.rank
    if name in TENSOR_PARALLEL:
        index = place.fsdp_rank
        whole = whole.chunk(place.tp.size if place.tp else 1, TENSOR_PARALLEL[name])[place.tp_rank]
    return whole.chunk(ranks_of(name, place).size)[index].clone()


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
    shape = list(parameter.shape)
    if name in TENSOR_PARALLEL:
        shape[TENSOR_PARALLEL[name]] *= config.tp
    return tuple(shape)


def _gather_on_access(module: nn.Module, gathers: dict[str, Callable[[Any], Tensor]]) -> None:
    """Give the module a class of its own, in which the parameters' names are properties."""
    properties = {name: property(partial(_gathered, name=name, gather=gather)) for name, gather in gathers.items()}
    module.__class__ = type(f"Sharded{type(module).__name__}", (type(module),), properties)


def _gathered(module: nn.Module, name: str, gather: Callable[[Any], Tensor]) -> Tensor:
    shard = module._parameters[name]
    if not torch.is_grad_enabled():
        return gather(shard)
    return checkpoint(gather, shard, use_reentrant=False, context_fn=_recompute_all)


def _recompute_all() -> Any:
    return create_selective_checkpoint_contexts(_always)


def _always(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE
