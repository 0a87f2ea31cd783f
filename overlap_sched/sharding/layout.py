"""How one parameter lies on a mesh, and the DTensor that is kept of it: the one that ``fully_shard`` keeps.

    mesh                parameter            kept as                        gathered as
    (shard)             plain                (Shard(0),)                    plain
    (replicate, shard)  plain                (Replicate(), Shard(0))        plain
    (shard)             DTensor on (tp)      (Shard(0) or strided, *its)    DTensor on (tp)

Rows are divided as ``torch.chunk`` does: the last ranks have fewer, or none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

_REDUCED_IN_OWN_TYPE = (2, 15)
"""The torch from which on ``reduce_dtype=None`` means the parameter's own type; before, the type of its gradient."""


@dataclass(frozen=True)
class CollectiveGroup:
    """A process group as functional collectives name it; of one rank, it is not communicated with."""

    name: str
    size: int


ALONE = CollectiveGroup("", 1)


@dataclass(frozen=True)
class TensorParallelLayout:
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
    """Where this rank stands in a mesh of one or two dimensions: (shard) or (replicate, shard)."""

    mesh: DeviceMesh
    device: torch.device

    @property
    def shards(self) -> CollectiveGroup:
        """The last dimension."""
        return self._group(self.mesh.ndim - 1)

    @property
    def replicas(self) -> CollectiveGroup:
        """The first of two."""
        return self._group(0) if self.mesh.ndim == 2 else ALONE

    @property
    def index(self) -> int:
        """The index of this rank's part."""
        return int(self.mesh.get_local_rank(self.mesh.ndim - 1))

    @property
    def replicated(self) -> tuple[Placement, ...]:
        """Placements before that of the shard."""
        return (Replicate(),) * (self.mesh.ndim - 1)

    def _group(self, dimension: int) -> CollectiveGroup:
        return CollectiveGroup(self.mesh.get_group(dimension).group_name, self.mesh.size(dimension))


def layout_of(parameter: nn.Parameter, place: Place, policy: MixedPrecisionPolicy) -> Layout:
    """The layout of a parameter that is not sharded yet."""
    own = parameter.dtype
    compute = _compute_type(parameter, policy) if own.is_floating_point else own
    default = own if _version() >= _REDUCED_IN_OWN_TYPE else compute
    reduce = (policy.reduce_dtype or default) if own.is_floating_point else own
    inside = None
    if isinstance(parameter, DTensor):
        inside = TensorParallelLayout(
            parameter.device_mesh, tuple(parameter.placements), tuple(parameter.shape), tuple(parameter.stride())
        )
    return Layout(place.shards, place.replicas, whole_of(parameter).shape[0], compute, reduce, inside)


def part_of(parameter: nn.Parameter, place: Place, layout: Layout) -> nn.Parameter:
    """Return what this rank keeps of a parameter: a copy of its rows, on the place's device (or still on ``meta``)."""
    whole = whole_of(parameter)
    first = min(place.index * layout.part, layout.rows)
    rows = whole[first : min(first + layout.part, layout.rows)]
    device = whole.device if whole.is_meta else place.device
    mine = torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows)
    mesh, placements = place.mesh, (*place.replicated, Shard(0))
    if layout.inside is not None:
        mesh = DeviceMesh._concatenate([place.mesh, layout.inside.mesh])
        placements = (*place.replicated, _outer_shard(layout.inside), *layout.inside.placements)
    stride = _contiguous_stride(parameter.shape)
    kept = DTensor.from_local(mine, mesh, placements, run_check=False, shape=parameter.shape, stride=stride)
    return nn.Parameter(kept, requires_grad=parameter.requires_grad)


def whole_of(parameter: Tensor) -> Tensor:
    """Return what is divided: the parameter, or this rank's part of a DTensor."""
    value = parameter.detach()
    local: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return local


def _outer_shard(inside: TensorParallelLayout) -> Placement:
    """Rows of a part of rows: strided, as ``fully_shard`` has it, so that the whole is put together in its order."""
    parts = 1
    for dimension, placement in enumerate(inside.placements):
        if placement.is_shard(0):
            parts *= inside.mesh.size(dimension)
    return _StridedShard(0, split_factor=parts) if parts > 1 else Shard(0)


def _compute_type(parameter: nn.Parameter, policy: MixedPrecisionPolicy) -> torch.dtype:
    choose = getattr(policy, "param_dtype_override_fn", None)  # from torch 2.15 on
    chosen: torch.dtype | None = None if choose is None else choose(parameter)
    return chosen or policy.param_dtype or parameter.dtype


def _contiguous_stride(shape: torch.Size) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
