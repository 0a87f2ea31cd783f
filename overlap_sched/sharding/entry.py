"""``shard``: fully sharded parameters by the arguments of ``fully_shard``, with all collectives in the graph."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard

from overlap_sched.errors import ShardingError
from overlap_sched.sharding.access import put_casts, put_properties
from overlap_sched.sharding.alike import put_names
from overlap_sched.sharding.checks import check_arguments, check_mesh, check_modules, check_parameter, replace_parameter
from overlap_sched.sharding.gather import cache_gathers
from overlap_sched.sharding.layout import Layout, Place, layout_of, part_of
from overlap_sched.sharding.random_states import repair_random_states
from overlap_sched.sharding.state import Owner, ShardedModule, ShardState


def shard(
    module: nn.Module | list[nn.Module],
    mesh: DeviceMesh | None = None,
    *,
    reshard_after_forward: bool | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: object = None,
) -> nn.Module | list[nn.Module]:
    """Shard parameters over the ranks of a mesh, gathered where they are read: what ``fully_shard`` does, compiled.

    Parameters become the same DTensors as with ``fully_shard``: names, placements, rows per rank. Gradients are means
    over all ranks. A module compiled afterwards has a gather per parameter and use in its graphs, and a
    reduce_scatter per gradient, where overlap_sched or any other pass can move them. One call for the whole model is
    enough: parameters are gathered one by one, not by groups. A call for a part of it before gives that part modes of
    its own. Uncompiled code computes the same, but keeps all that is gathered until backward.

    Args:
        module: Changed in place: parameters, buffers (moved to the mesh's device), classes. Or several modules, whose
            shared parameters stay shared.
        mesh: One dimension: sharded over it. Two: replicated over the first, sharded over the second (HSDP). Parameters
            that are DTensors (tensor parallel) are sharded on top, over the ranks of this mesh. ``None``: all ranks.
        reshard_after_forward: ``True`` or ``None``: gathered again in backward, which saves memory. ``False``: kept.
        shard_placement_fn: Only ``Shard(0)`` and ``None`` can come of it.
        mp_policy: As for ``fully_shard``; inputs and outputs of ``module`` are cast.
        offload_policy: None but the default.
        ignored_params: Parameters that stay as they are.
        dp_mesh_dims: Not supported.

    Returns:
        ``module``, now also a :class:`~overlap_sched.sharding.state.ShardedModule`.

    Raises:
        ShardingError: The model or an argument is one that this cannot do; the message says what can be done.
    """
    roots = list(module) if isinstance(module, list | tuple) else [module]
    ignored = set(ignored_params) if isinstance(ignored_params, Iterable) else {ignored_params} - {None}
    check_arguments(roots, mp_policy, ignored, reshard_after_forward, offload_policy, dp_mesh_dims)
    place, policy, modules = _place_in(mesh), mp_policy or MixedPrecisionPolicy(), _modules_of(roots)
    check_modules(roots, modules, ignored)
    parameters = _parameters_of(modules, ignored)
    for parameter, name in parameters.items():
        check_parameter(parameter, name, shard_placement_fn)
    repair_random_states()
    cache_gathers()
    state = ShardState(again=reshard_after_forward is not False, group=place.shards.name)
    _divide([one for _, one in modules], {one: layout_of(one, place, policy) for one in parameters}, place, state)
    for parameter, name in parameters.items():
        replace_parameter(parameter, name)
    for root in roots:
        put_casts(root, state, policy)
    put_names(roots)
    return module


def _divide(
    modules: Sequence[nn.Module], layouts: Mapping[nn.Parameter, Layout], place: Place, state: ShardState
) -> None:
    parts = {parameter: part_of(parameter, place, layout) for parameter, layout in layouts.items()}
    owners: dict[nn.Parameter, list[Owner]] = {parameter: [] for parameter in layouts}
    for module in modules:
        _move_buffers(module, place.device)
        own: dict[str, Layout] = {}
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter in layouts:
                module._parameters[name] = parts[parameter]
                own[name] = layouts[parameter]
                owners[parameter].append(Owner(module, name, own[name]))
        if any(True for _ in module.parameters()):
            put_properties(module, own, state)
    state.owners.extend(owners.values())


def _place_in(mesh: DeviceMesh | None) -> Place:
    if mesh is None:
        if not dist.is_initialized():
            raise ShardingError(
                "there is no process group yet, and no mesh was given. Call torch.distributed.init_process_group() "
                "first, or pass mesh=init_device_mesh(...)."
            )
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        mesh = init_device_mesh(accelerator.type if accelerator else "cpu", (dist.get_world_size(),))
    check_mesh(mesh)
    if mesh.device_type == "cpu":
        return Place(mesh, torch.device("cpu"))
    return Place(mesh, torch.device(mesh.device_type, torch.accelerator.current_device_index()))


def _modules_of(roots: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """All modules, by path, but for those that a call before has sharded."""
    found: dict[nn.Module, str] = {}

    def add(module: nn.Module, path: str) -> None:
        if module in found or (isinstance(module, ShardedModule) and module not in roots):
            return
        found[module] = path
        for name, child in module.named_children():
            add(child, f"{path}.{name}".lstrip("."))

    for root in roots:
        add(root, "")
    return [(path, module) for module, path in found.items()]


def _parameters_of(modules: Sequence[tuple[str, nn.Module]], ignored: set[nn.Parameter]) -> dict[nn.Parameter, str]:
    result: dict[nn.Parameter, str] = {}
    for path, module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in ignored:
                result.setdefault(parameter, f"{path}.{name}".lstrip("."))
    return result


def _move_buffers(module: nn.Module, device: torch.device) -> None:
    for name, buffer in module.named_buffers(recurse=False):
        if not buffer.is_meta:
            module._buffers[name] = buffer.to(device)
