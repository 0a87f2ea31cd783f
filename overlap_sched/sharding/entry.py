"""``shard``: fully sharded parameters by the arguments of ``fully_shard``, with all collectives in the graph."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from itertools import takewhile
from typing import Any, NoReturn

import torch
import torch._functorch.config
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from overlap_sched.errors import ShardingError
from overlap_sched.sharding.gather import Place, layout_of, part_of
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

    Returns:
        ``module``, now also a :class:`~overlap_sched.sharding.modules.ShardedModule`.

    Raises:
        ShardingError: The model or an argument is one that this cannot do; the message says what can be done.
    """
    roots: list[Any] = list(module) if isinstance(module, list | tuple) else [module]
    ignored = set(ignored_params) if isinstance(ignored_params, Iterable) else {ignored_params} - {None}
    for one in ignored:
        if not isinstance(one, nn.Parameter):
            raise ShardingError("ignored_params must be a set of parameters: set(model.head.parameters()).")
    if not isinstance(reshard_after_forward, bool | None):
        fault = f"reshard_after_forward is {reshard_after_forward}: resharding to fewer ranks is not supported"
        raise ShardingError(f"{fault}. Use True (gather again in backward) or False (keep).")
    if type(offload_policy) not in (type(None), OffloadPolicy):
        raise ShardingError("offload_policy: offloading is not supported. Use torch's fully_shard for this model.")
    place, policy, modules = _place_in(mesh), mp_policy or MixedPrecisionPolicy(), _modules_of(roots)
    parameters: dict[Any, str] = {}
    for one, path in modules.items():
        _check_module(one, path, ignored)
        for name, parameter in one.named_parameters(recurse=False):
            if parameter not in ignored:
                parameters.setdefault(parameter, f"{path}.{name}".lstrip("."))
    for parameter, name in parameters.items():
        _check_parameter(parameter, name, shard_placement_fn and shard_placement_fn(parameter))
    repair_random_states()
    # By default torch's AOTAutograd cache leaves out graphs with autograd functions. Forward and backward of gathers
    # are graphs inside of the graph when its key is made, and part of that key. torch's environment variable
    # ``TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=0`` goes before.
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    state = ShardState(again=reshard_after_forward is not False, group=place.shards.name)
    layouts = {parameter: layout_of(parameter, place, policy) for parameter in parameters}
    parts = {parameter: part_of(parameter, place, layout) for parameter, layout in layouts.items()}
    owners: dict[nn.Parameter, list[Owner]] = {parameter: [] for parameter in layouts}
    for one in modules:
        for name, buffer in one.named_buffers(recurse=False):
            one._buffers[name] = buffer if buffer.is_meta else buffer.to(place.device)
        named = one.named_parameters(recurse=False, remove_duplicate=False)
        own = {name: parameter for name, parameter in named if parameter in layouts}
        for name, parameter in own.items():
            one._parameters[name] = parts[parameter]
            owners[parameter].append(Owner(one, name, layouts[parameter]))
        if any(True for _ in one.parameters()):
            put_properties(one, {name: layouts[parameter] for name, parameter in own.items()}, state)
    state.owners.extend(owners.values())
    for old, name in parameters.items():
        old.__class__, old.replaced = _replaced(old.__class__), name
    for root in roots:
        put_casts(root, state, policy)
    put_names(roots)
    return module


def _place_in(mesh: DeviceMesh | None) -> Place:
    if mesh is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        mesh = init_device_mesh(accelerator.type if accelerator else "cpu", (dist.get_world_size(),))
    if mesh.ndim not in (1, 2):
        fault = f"the mesh has {mesh.ndim} dimensions {mesh.mesh_dim_names or tuple(mesh.shape)}; it takes one or two"
        raise ShardingError(f'{fault}. Pass those of data parallelism: mesh["dp"], or mesh["replicate", "shard"].')
    index = None if mesh.device_type == "cpu" else torch.accelerator.current_device_index()
    return Place.of(mesh, torch.device(mesh.device_type, index))


def _modules_of(roots: Sequence[nn.Module]) -> dict[nn.Module, str]:
    """All modules, and their paths, but for those that a call before has sharded."""
    found: dict[nn.Module, str] = {}

    def add(module: nn.Module, path: str) -> None:
        if module not in found and (module in roots or not isinstance(module, ShardedModule)):
            found[module] = path
            for name, child in module.named_children():
                add(child, f"{path}.{name}".lstrip("."))

    for root in roots:
        add(root, "")
    return found


# What ``shard`` cannot do, told before anything is changed.


def _check_module(module: nn.Module, path: str, ignored: set[nn.Parameter]) -> None:
    """Refuse modules that are sharded already, or that do not read their parameters as attributes."""
    match module:
        case ShardedModule():
            fault = "is sharded already. Call shard once per module: parts first, then the model that has them."
        case FSDPModule():
            fault = "is sharded already, by fully_shard. Use one of the two: leave out fully_shard."
        case DistributedDataParallel():
            fault = "holds whole parameters. Shard its module: shard(model.module, mesh)."
        case nn.RNNBase() if not ignored.issuperset(module.parameters()):
            fault = "reads its weights from a list of its own. Add its parameters to ignored_params."
        case _:
            return
    raise ShardingError(f"{path or 'the module'} ({type(module).__name__}) {fault}")


def _check_parameter(parameter: nn.Parameter, name: str, chosen: Shard | None) -> None:
    """Refuse what cannot be divided by rows, was divided by another call, or would leave a hook behind."""
    if parameter._post_accumulate_grad_hooks or parameter._backward_hooks:
        fault = "has a hook, which would stay with the parameter that shard replaces. Register it after shard(model)."
    elif hasattr(parameter, "replaced"):
        fault = "is shared with a module that another call has sharded. Shard both in one: shard([embedding, head])."
    elif parameter.dim() == 0:
        fault = "is a scalar, which has no rows to divide. Make it a tensor of one element."
    elif chosen is not None and chosen != Shard(0):
        fault = f"is given {chosen!r} by shard_placement_fn; only Shard(0) is supported. Or add it to ignored_params."
    else:
        return
    raise ShardingError(f"{name} {fault}")


@cache
def _replaced(own: type) -> type:
    """A class that raises wherever the gradient of a parameter that ``shard`` has divided is asked for.

    torch can turn no ``Parameter`` into a DTensor: an optimizer that was made before still has the old one.
    """

    def refuse(parameter: Any, *_: Any) -> NoReturn:
        fault = f"shard() has replaced {getattr(parameter, 'replaced', 'this parameter')}"
        raise ShardingError(f"{fault}: an optimizer made before would train nothing. Make it after shard(model).")

    return type(f"Replaced{own.__name__}", (own,), {"grad": property(refuse, refuse)})


# States of random numbers beside the meshes of DTensor parameters: a repair of torch's partitioner.
#
# A checkpoint that draws random numbers (dropout; on torch 2.13 attention of any kind) has the generator's state saved
# for backward. ``torch/_functorch/partitioners.py: functionalize_rng_ops`` (2.13 to 2.15) puts states in front of the
# symbolic sizes, but behind opaque objects, such as the mesh that every DTensor parameter brings. Readers count from
# the end: they take the mesh for a tensor, and the first forward dies. Here states go in front of opaque objects, in
# both graphs. Where there is nothing to put right, graphs stay as torch makes them.


@cache
def repair_random_states() -> None:
    """Put it right from now on; once per process. A torch without this function is left alone."""
    import torch._functorch.partitioners as partitioners

    torchs = getattr(partitioners, "functionalize_rng_ops", None)
    if torchs is None:
        return

    @wraps(torchs)
    def functionalize(joint: Any, forward: fx.GraphModule, backward: fx.GraphModule, num_sym_nodes: int) -> Any:
        from torch._functorch._aot_autograd.graph_compile import is_opaque_node

        saved: Sequence[Any] = forward.graph.output_node().args[0]
        opaque = len(list(takewhile(is_opaque_node, reversed(saved[: len(saved) - num_sym_nodes]))))
        before = set(backward.graph.find_nodes(op="placeholder"))
        made = torchs(joint, forward, backward, num_sym_nodes + opaque)
        if opaque:  # new inputs move in front of it; states of generators of GPUs come behind the tangents: they stay
            inputs = list(made[1].graph.find_nodes(op="placeholder"))
            first = next(filter(is_opaque_node, inputs))
            for state in takewhile(lambda node: "tangent" not in node.name, inputs):
                if state not in before:
                    first.prepend(state)
            made[1].recompile()
        return made

    partitioners.functionalize_rng_ops = functionalize
