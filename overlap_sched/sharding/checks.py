"""What ``shard`` cannot do, told before anything is changed."""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from overlap_sched.errors import ShardingError
from overlap_sched.sharding.state import ShardedModule


def replace_parameter(parameter: nn.Parameter, name: str) -> None:
    """Raise wherever the gradient of a parameter that ``shard`` has divided is asked for from now on.

    torch can turn no ``Parameter`` into a DTensor: an optimizer that was made before still has the old one.
    """
    own: Any = type(parameter)
    parameter.__class__ = _replaced(own)
    parameter.replaced = name


@cache
def _replaced(own: type) -> type:
    return type(f"Replaced{own.__name__}", (own,), {"grad": property(_refuse, _refuse)})


def _refuse(parameter: Any, *_: Any) -> NoReturn:
    raise ShardingError(
        f"shard() has replaced {getattr(parameter, 'replaced', 'this parameter')}: an optimizer that was made before "
        "would train nothing. Make it after shard(model), of model.parameters()."
    )


def _check_type(name: str, given: object, kind: Any, meant: str) -> None:
    if not isinstance(given, kind):
        shown = given if isinstance(given, int | str | list | torch.dtype) else f"a {type(given).__name__}"
        raise ShardingError(f"{name} is {shown}; it is {meant}")


def check_mesh(mesh: DeviceMesh) -> None:
    """One dimension, or two."""
    make = 'init_device_mesh("cuda", (ranks,)), or of a process group DeviceMesh.from_group(group, "cuda")'
    _check_type("mesh", mesh, DeviceMesh, f"a DeviceMesh: {make}.")
    if mesh.ndim not in (1, 2):
        raise ShardingError(
            f"the mesh has {mesh.ndim} dimensions {mesh.mesh_dim_names or tuple(mesh.shape)}; shard takes one (shard) "
            'or two (replicate, shard). Pass those of data parallelism: mesh["dp"], or mesh["replicate", "shard"].'
        )


def check_arguments(
    roots: Sequence[object],
    policy: object,
    ignored: Collection[object],
    reshard_after_forward: object,
    offload_policy: object,
    dp_mesh_dims: object,
) -> None:
    """Arguments of other types, or of ``fully_shard`` that are not supported."""
    for root in roots or [roots]:
        _check_type("module", root, nn.Module, "a model, or a list of modules: shard(model, mesh), not its parameters.")
    dtype = policy if isinstance(policy, torch.dtype) else getattr(policy, "param_dtype", None) or torch.bfloat16
    meant = f"a policy. Did you mean torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype={dtype})?"
    _check_type("mp_policy", policy, MixedPrecisionPolicy | None, meant)
    for one in ignored:
        _check_type("ignored_params", one, nn.Parameter, "a set of parameters: set(model.head.parameters()).")
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
        if isinstance(module, DistributedDataParallel):
            raise ShardingError(f"{where} is a DistributedDataParallel. Shard its module: shard(model.module, mesh).")
        if isinstance(module, nn.RNNBase) and not ignored.issuperset(module.parameters()):
            raise ShardingError(
                f"{where} ({type(module).__name__}) reads its weights from a list of its own, past what gathers them. "
                "Add its parameters to ignored_params."
            )


def check_parameter(
    parameter: nn.Parameter, name: str, shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None
) -> None:
    """Parameters that cannot be divided by rows, were divided by another call, or would leave a hook behind."""
    if parameter._post_accumulate_grad_hooks or parameter._backward_hooks:
        raise ShardingError(
            f"{name} has a hook for its gradient, which would stay with the parameter that shard replaces. Register it "
            "after shard(model)."
        )
    if hasattr(parameter, "replaced"):
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
