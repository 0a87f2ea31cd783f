"""``shard``: fully sharded parameters by the arguments of ``fully_shard``, with all collectives in the graph."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from overlap_sched.errors import ShardingError
from overlap_sched.sharding.gather import Layout, Place, cache_gathers, layout_of, part_of
from overlap_sched.sharding.modules import Owner, ShardedModule, ShardState, put_casts, put_names, put_properties


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
        ``module``, now also a :class:`~overlap_sched.sharding.modules.ShardedModule`.

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


# What ``shard`` cannot do, told before anything is changed.


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


# States of random numbers beside the meshes of DTensor parameters: a repair of torch's partitioner.
#
# A checkpoint that draws random numbers (dropout; on torch 2.13 attention of any kind) has the generator's state saved
# for backward. ``torch/_functorch/partitioners.py: functionalize_rng_ops`` (2.13 to 2.15) puts states in front of the
# symbolic sizes, but behind opaque objects, such as the mesh that every DTensor parameter brings. Readers count from
# the end: they take the mesh for a tensor, and the first forward dies. Here states go in front of opaque objects, in
# both graphs. Where there is nothing to put right, graphs stay as torch makes them.


_REPAIRED = "_repaired_by_overlap_sched"


def repair_random_states() -> None:
    """Put it right from now on; once per process. A torch without this function is left alone."""
    import torch._functorch.partitioners as partitioners

    torchs = getattr(partitioners, "functionalize_rng_ops", None)
    if torchs is None or hasattr(torchs, _REPAIRED):
        return

    @functools.wraps(torchs)
    def functionalize(
        joint: fx.GraphModule, forward: fx.GraphModule, backward: fx.GraphModule, num_sym_nodes: int
    ) -> Any:
        saved: Sequence[Any] = forward.graph.output_node().args[0]
        opaque = _opaque_before(saved, len(saved) - num_sym_nodes)
        before = set(_inputs(backward))
        made = torchs(joint, forward, backward, num_sym_nodes + opaque)
        if opaque:
            _bring_forward(made[1], before)
        return made

    setattr(functionalize, _REPAIRED, True)
    partitioners.functionalize_rng_ops = functionalize


def _opaque_before(saved: Sequence[Any], end: int) -> int:
    """How many opaque objects stand right in front of ``end``."""
    from torch._functorch._aot_autograd.graph_compile import is_opaque_node

    first = end
    while first and is_opaque_node(saved[first - 1]):
        first -= 1
    return end - first


def _bring_forward(backward: fx.GraphModule, before: set[fx.Node]) -> None:
    """Inputs that are new, and stand in front of the tangents, move in front of the first opaque object.

    The states of generators of GPUs come last of all, behind the tangents: they stay.
    """
    from torch._functorch._aot_autograd.graph_compile import is_opaque_node

    inputs = _inputs(backward)
    first = next(node for node in inputs if is_opaque_node(node))
    tangents = next(at for at, node in enumerate(inputs) if "tangent" in node.name)
    for state in inputs[:tangents]:
        if state not in before:
            first.prepend(state)
    backward.recompile()


def _inputs(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))
