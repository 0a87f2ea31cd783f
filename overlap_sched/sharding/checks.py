"""What ``shard`` cannot do, told before anything is changed."""

from collections.abc import Callable, Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, OffloadPolicy
from torch.distributed.tensor import Shard

from overlap_sched.errors import ShardingError
from overlap_sched.sharding.state import ShardedModule

_SHARDED = "_sharded_by_overlap_sched"
"""An attribute of parameters that a call has divided: whoever else has one and is not in that call is told."""


def mark_sharded(parameter: nn.Parameter) -> None:
    """Remember that a call has divided this parameter, in case another module has it, too."""
    setattr(parameter, _SHARDED, True)


def check_mesh(mesh: DeviceMesh) -> None:
    """One dimension, or two."""
    if mesh.ndim not in (1, 2):
        raise ShardingError(
            f"the mesh has {mesh.ndim} dimensions {mesh.mesh_dim_names or tuple(mesh.shape)}; shard takes one (shard) "
            'or two (replicate, shard). Pass those of data parallelism: mesh["dp"], or mesh["replicate", "shard"].'
        )


def check_arguments(reshard_after_forward: object, offload_policy: object, dp_mesh_dims: object) -> None:
    """Arguments of ``fully_shard`` that are not supported."""
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, bool):
        raise ShardingError(
            f"reshard_after_forward is {reshard_after_forward!r}: resharding to fewer ranks is not supported. Use True "
            "(gather again in backward) or False (keep)."
        )
    if offload_policy is not None and type(offload_policy) is not OffloadPolicy:
        raise ShardingError(
            f"offload_policy is a {type(offload_policy).__name__}: offloading is not supported. Leave it out, or use "
            "torch's fully_shard for this model."
        )
    if dp_mesh_dims is not None:
        raise ShardingError(
            "dp_mesh_dims is not supported. Pass the data-parallel dimensions of the mesh as mesh: "
            'mesh["dp"], or mesh["replicate", "shard"].'
        )


def check_modules(
    roots: Sequence[nn.Module], modules: Sequence[tuple[str, nn.Module]], ignored: set[nn.Parameter]
) -> None:
    """Modules that are sharded already, or that do not read their parameters as attributes."""
    for root in roots:
        if isinstance(root, ShardedModule):
            raise ShardingError(
                f"this {type(root).__name__} is sharded already. Call shard once per module: parts first, then the "
                "model that has them."
            )
    for path, module in modules:
        where = path or "the module"
        if isinstance(module, FSDPModule):
            raise ShardingError(
                f"{where} is sharded already, by fully_shard. Use one of the two: leave out fully_shard."
            )
        if isinstance(module, nn.RNNBase) and not ignored.issuperset(module.parameters()):
            raise ShardingError(
                f"{where} ({type(module).__name__}) reads its weights from a list of its own, past what gathers them. "
                "Add its parameters to ignored_params."
            )


def check_parameter(
    parameter: nn.Parameter, name: str, shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None
) -> None:
    """Parameters that cannot be divided by rows, or were divided by another call."""
    if hasattr(parameter, _SHARDED):
        raise ShardingError(
            f"{name} is shared with a module that was sharded by another call. Shard both in one call: "
            "shard([embedding, head]), or shard(model) alone."
        )
    if parameter.dim() == 0:
        raise ShardingError(f"{name} is a scalar, which has no rows to divide. Make it a tensor of one element.")
    chosen = None if shard_placement_fn is None else shard_placement_fn(parameter)
    if chosen is not None and chosen != Shard(0):
        raise ShardingError(
            f"shard_placement_fn gives {chosen!r} for {name}; only Shard(0) is supported. Return None or Shard(0) for "
            "it, or add it to ignored_params."
        )
