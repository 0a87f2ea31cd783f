"""The collectives of one parameter: functional ones, so that they are nodes of a compiled graph.

    forward    part -> compute type -> (padded) -> all_gather -> wait -> whole
    backward   gradient -> reduce type -> (padded) -> reduce_scatter -> wait -> (all_reduce -> wait) -> part's type

Gradients are averaged over all ranks of the mesh as ``fully_shard`` does (torch's ``_get_gradient_divide_factors``): by
the collective where the type cannot overflow, by factors before and after it in fp16.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# How one parameter lies on a mesh, and the DTensor that is kept of it: the one that ``fully_shard`` keeps.
#
# mesh                parameter            kept as                        gathered as
# (shard)             plain                (Shard(0),)                    plain
# (replicate, shard)  plain                (Replicate(), Shard(0))        plain
# (shard)             DTensor on (tp)      (Shard(0) or strided, *its)    DTensor on (tp)
#
# Rows are divided as ``torch.chunk`` does: the last ranks have fewer, or none.


@dataclass(frozen=True)
class CollectiveGroup:
    """A process group as functional collectives name it; of one rank, it is not communicated with."""

    name: str
    size: int


class TensorParallelLayout(NamedTuple):
    """The DTensor that a parameter was before it was sharded: what tensor parallelism made of it."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How one parameter is gathered, and its gradient reduced.

    Parameters alike have equal layouts, whatever module they are in: compiled code of one fits the other.

    Attributes:
        shards: The ranks that have its parts.
        replicas: The ranks that have the same part.
        rows: Length of the first dimension of what is gathered.
        compute: The type in which it is gathered and used.
        reduce: The type in which its gradient is reduced.
        inside: See :class:`TensorParallelLayout`; ``None`` for a plain parameter.
    """

    shards: CollectiveGroup
    replicas: CollectiveGroup
    rows: int
    compute: torch.dtype
    reduce: torch.dtype
    inside: TensorParallelLayout | None = None

    @property
    def part(self) -> int:
        """Rows of one rank, before the last ones run out."""
        return -(-self.rows // self.shards.size)

    @property
    def missing(self) -> int:
        """Rows that all parts have more than the whole, were all as long as the first."""
        return self.part * self.shards.size - self.rows


@dataclass(frozen=True)
class Place:
    """Where this rank stands in a mesh of one or two dimensions: (shard) or (replicate, shard).

    Attributes:
        shards, replicas: The groups of the last dimension, and of the first of two.
        index: That of this rank's part.
    """

    mesh: DeviceMesh
    device: torch.device
    shards: CollectiveGroup
    replicas: CollectiveGroup
    index: int

    @classmethod
    def of(cls, mesh: DeviceMesh, device: torch.device) -> "Place":
        """This rank's."""
        groups = [CollectiveGroup(mesh.get_group(k).group_name, mesh.size(k)) for k in range(mesh.ndim)]
        replicas = groups[0] if mesh.ndim == 2 else CollectiveGroup("", 1)
        return cls(mesh, device, groups[-1], replicas, int(mesh.get_local_rank(mesh.ndim - 1)))


def layout_of(parameter: nn.Parameter, place: Place, policy: MixedPrecisionPolicy) -> Layout:
    """The layout of a parameter that is not sharded yet."""
    compute = reduce = parameter.dtype
    if compute.is_floating_point:
        choose: Any = getattr(policy, "param_dtype_override_fn", None)  # from torch 2.15 on
        compute = (choose and choose(parameter)) or policy.param_dtype or compute
        # from 2.15 on the default is the parameter's own type; before, the type of its gradient
        reduce = policy.reduce_dtype or (reduce if torch.__version__ >= "2.15" else compute)
    inside = None
    if isinstance(parameter, DTensor):
        shape, stride = tuple(parameter.shape), tuple(parameter.stride())
        inside = TensorParallelLayout(parameter.device_mesh, tuple(parameter.placements), shape, stride)
    return Layout(place.shards, place.replicas, _local(parameter).shape[0], compute, reduce, inside)


def part_of(parameter: nn.Parameter, place: Place, layout: Layout) -> nn.Parameter:
    """Return what this rank keeps of a parameter: a copy of its rows, on the place's device (or still on ``meta``)."""
    rows = _local(parameter)[place.index * layout.part :][: layout.part]
    device = rows.device if rows.is_meta else place.device
    mine = torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows)
    mesh, inside, placement = place.mesh, layout.inside, Shard(0)
    if inside is not None:
        mesh = DeviceMesh._concatenate([place.mesh, inside.mesh])
        parts = math.prod(inside.mesh.size(k) for k, held in enumerate(inside.placements) if held.is_shard(0))
        if parts > 1:  # rows of a part of rows: as ``fully_shard`` has it, so that the whole is put together in order
            placement = _StridedShard(0, split_factor=parts)
    replicated = [Replicate()] * (place.mesh.ndim - 1)
    placements = (*replicated, placement, *(inside.placements if inside is not None else ()))
    kept = as_dtensor(mine, mesh, placements, parameter.shape, torch.empty(parameter.shape, device="meta").stride())
    return nn.Parameter(kept, requires_grad=parameter.requires_grad)


def as_dtensor(local: Tensor, mesh: DeviceMesh, placements: Any, shape: Any, stride: Any) -> DTensor:
    """The DTensor of which this rank has a part."""
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def _local(parameter: Tensor) -> Tensor:
    """Return what is divided: the parameter, or this rank's part of a DTensor."""
    value = parameter.detach()
    local: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return local


_C10D = torch.ops._c10d_functional


def gather(
    part: Tensor, layout: Layout, factor: float | None = None, collector: Tensor | None = None, *, again: bool
) -> Tensor:
    """The whole of a parameter.

    Args:
        part: This rank's rows, plain.
        layout: Of the parameter.
        factor: By what the sum of gradients is divided; ``None``: by the number of ranks.
        collector: A leaf of the whole's shape, of the reduce type, to which the gradient goes as it is: nothing is
            communicated in backward.
        again: In a compiled graph: gather again in backward instead of keeping the whole until then.
    """
    # a checkpoint of the gather alone: torch's partitioner puts its nodes into the backward graph once more
    again_too: Any = {"use_reentrant": False, "context_fn": _recompute_all}
    given = (part, collector, layout, factor)
    whole: Tensor = checkpoint(_Gather.apply, *given, **again_too) if again else _Gather.apply(*given)
    return whole


def reduced(gradient: Tensor, rows: int, layout: Layout, factor: float | None) -> Tensor:
    """This rank's rows of the mean of all ranks' gradients, in the reduce type."""
    gradient = gradient.to(layout.reduce)
    if layout.shards.size == layout.replicas.size == 1:
        return gradient if factor is None else gradient / factor
    before, op, after = _division(layout, factor)
    gradient = gradient if before == 1.0 else gradient / before
    if layout.shards.size > 1:
        if layout.missing:
            gradient = _padded(gradient, layout.part * layout.shards.size)
        gradient = _wait(_C10D.reduce_scatter_tensor(gradient.contiguous(), op, layout.shards.size, layout.shards.name))
    if layout.replicas.size > 1:
        gradient = _wait(_C10D.all_reduce(gradient.contiguous(), op, layout.replicas.name))
    gradient = gradient if after == 1.0 else gradient / after
    return gradient[:rows] if layout.missing else gradient


class _Gather(torch.autograd.Function):
    """Casts and gathers; rows that only pad are cut off. Its backward reduces, or hands it to the collector.

    Nothing is sent in a group of one.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, collector: Tensor | None, layout: Layout, factor: float | None) -> Tensor:
        ctx.layout, ctx.factor, ctx.rows, ctx.dtype = layout, factor, part.shape[0], part.dtype
        ctx.collects = collector is not None
        part = part.to(layout.compute)
        if layout.shards.size == 1:
            return part.view_as(part)
        if layout.missing:  # on all ranks alike: padded by nothing where there is nothing to pad
            part = _padded(part, layout.part)
        whole = _wait(_C10D.all_gather_into_tensor(part.contiguous(), layout.shards.size, layout.shards.name))
        return whole[: layout.rows] if layout.missing else whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if ctx.collects:
            return None, gradients[0].to(ctx.layout.reduce), None, None
        return reduced(gradients[0], ctx.rows, ctx.layout, ctx.factor).to(ctx.dtype), None, None, None


def _division(layout: Layout, factor: float | None) -> tuple[float, str, float]:
    """(divided by before, how it is reduced, divided by after)."""
    if layout.reduce in (torch.float32, torch.bfloat16):  # which do not overflow
        return (1.0, "avg", 1.0) if factor is None else (1.0, "sum", factor)
    whole = float(layout.shards.size * layout.replicas.size) if factor is None else factor
    before = 1.0
    while whole % before == 0 and whole / before > before:
        before *= 2
    return before, "sum", whole / before


def _padded(x: Tensor, rows: int) -> Tensor:
    return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, rows - x.shape[0]])


def _wait(launched: Tensor) -> Tensor:
    result: Tensor = _C10D.wait_tensor(launched)
    return result


def _recompute_all() -> Any:
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE)


_recompute_all.cache_hash = "overlap_sched.sharding: gathers run again"  # type: ignore[attr-defined]
"""Without one torch's AOTAutograd cache leaves out graphs with this context. It stands for what the policy says."""
