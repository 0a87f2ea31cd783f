"""Sharded modules: properties in the parameters' places, what one call of ``shard`` shares, reads compared among ranks.

A property gives the whole of a parameter, gathered, in a forward; outside of one, the parameter. So ``nn.init``,
``load_state_dict``, ``tie_weights`` and the like find the sharded parameters, as with ``fully_shard``, and what
computes finds whole ones. A forward is that of a module with sharded parameters in it, in eager or compiled code;
whatever is compiled counts as one.
"""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.comptime import ComptimeContext, comptime
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from overlap_sched.distributed.agreement import PREFIX, membership_of, short_hash
from overlap_sched.errors import ShardingError
from overlap_sched.sharding.gather import Layout, as_dtensor, gather, reduced

# What one call of ``shard`` shares: its modes, and gradients that were not reduced yet.
#
# Gradient accumulation without communication: while gradients are not synchronised, each parameter is gathered together
# with a *collector*, a leaf of the whole's shape that takes no memory (one number, expanded). Autograd adds the whole
# gradients up in ``collector.grad``; when synchronisation is on again, their sum is reduced into the parameter's own
# gradient, outside of any graph.


@dataclass(frozen=True)
class Owner:
    """A module that has a parameter under a name; tied parameters have several."""

    module: nn.Module
    name: str
    layout: Layout

    @property
    def parameter(self) -> Any:
        """As it is now: ``load_state_dict(assign=True)`` puts others in its place."""
        return self.module._parameters[self.name]


@dataclass(eq=False)
class ShardState:
    """The modes of the parameters of one call of ``shard``.

    Attributes:
        again: Gather again in backward.
        group: Name of the process group that has the parts.
        sync: Reduce gradients in backward.
        factor: By what the sum of gradients is divided; ``None``: by the number of ranks.
        owners: For each parameter, all that have it.
    """

    again: bool
    group: str
    sync: bool = True
    factor: float | None = None
    owners: list[list[Owner]] = field(default_factory=list)

    def synchronize(self, sync: bool) -> None:
        """Reduce gradients from now on, and those that were collected; or collect them."""
        self.sync = sync
        for owners in self.owners:
            first = owners[0]
            collector = first.module._collectors.get(first.name)
            if collector is not None:
                self._reduce(first, collector)
            elif not sync and first.parameter.requires_grad:
                part = first.parameter.to_local()
                one = torch.zeros((), dtype=first.layout.reduce, device=part.device)
                collector = one.expand(first.layout.rows, *part.shape[1:]).requires_grad_()
                # synchronisation may be switched on between forward and backward
                collector.register_post_accumulate_grad_hook(partial(self._reduce, first))
                for owner in owners:
                    owner.module._collectors[owner.name] = collector

    @torch.no_grad()
    def _reduce(self, owner: Owner, collector: Tensor) -> None:
        """Reduce what was collected, while gradients are synchronised."""
        gradient = collector.grad
        if gradient is None or not self.sync:
            return
        collector.grad, parameter = None, owner.parameter
        part = parameter.to_local()
        mine = reduced(gradient, part.shape[0], owner.layout, self.factor).to(part.dtype)
        if parameter.grad is not None:
            parameter.grad.to_local().add_(mine)
        else:
            mesh, placements = parameter.device_mesh, parameter.placements
            parameter.grad = as_dtensor(mine, mesh, placements, parameter.shape, parameter.stride())


class ShardedModule:
    """What a module given to ``shard`` can do besides; named as in ``fully_shard``'s ``FSDPModule``."""

    _sharding: ShardState

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Reduce gradients in the backwards to come, or add them up without communication.

        Switched on again, it reduces what was added up: all ranks call it. ``recurse``: also for modules in it that
        were given to ``shard`` by themselves.
        """
        for state in _states_of(self, recurse):
            state.synchronize(requires_gradient_sync)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are added up without communication; at the end their sum is reduced."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Gather again in backward, or keep what was gathered; for graphs compiled from now on."""
        for state in _states_of(self, recurse):
            state.again = reshard_after_forward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of all ranks' gradients by ``factor`` instead of the number of ranks."""
        self._sharding.factor = factor


def _states_of(module: Any, recurse: bool) -> list[ShardState]:
    modules = module.modules() if recurse else [module]
    return list({id(one._sharding): one._sharding for one in modules if isinstance(one, ShardedModule)}.values())


# Whether all ranks gather the same parameters: with others of equal shape, values are wrong and nobody notices.
#
# Each rank lists its parameters by their first reads, in eager code or when a read is compiled. The first rank to come
# to a place of that list leaves the name in the process group's store; the others compare theirs. Nobody waits: whoever
# comes later with another parameter of the same shape raises, before it has launched its first collective. Shapes that
# differ are left to torch, and end the comparison: what follows stands at other places.


_first_reads: dict[str, dict[str, None]] = {}
"""Of each group of ranks, the parameters by their first reads."""
_ended: dict[str, str] = {}
"""Groups of ranks that are not compared any more, and what to raise from now on; ``""``: nothing."""


def put_names(roots: list[nn.Module]) -> None:
    """Tell modules what their parameters are called in the whole model, also those that earlier calls have sharded."""
    for number, root in enumerate(roots):
        before = f"{number}." if len(roots) > 1 else ""
        for path, module in root.named_modules():
            if "_sharding" in module.__dict__:
                where = f"{before}{path}.".lstrip(".")
                module._parameter_names = {name: f"{where}{name}" for name in module._parameters}


def compare_reads(module: nn.Module, name: str) -> None:
    """A parameter is read, now or by what is being compiled.

    Raises:
        ShardingError: Another rank reads another parameter of this shape at this place.
    """
    if torch.compiler.is_compiling():
        comptime(_when_traced)
    else:
        _compare(module, name)


def _when_traced(context: ComptimeContext) -> None:
    """Without any mark in what is compiled: one code serves all modules alike."""
    module: Any = context.get_local("module")
    _compare(module._ComptimeVar__variable.value, context.get_local("name").as_python_constant())


def _compare(module: Any, name: str) -> None:
    fault = ""
    with suppress(Exception):  # torch's stores raise several types; a fault of this check is no fault of the job
        fault = _fault(module, name)
    if fault:
        raise ShardingError(fault)


def _fault(module: Any, name: str) -> str:
    """That another rank has read another parameter of this shape at this place; ``""``: none has."""
    membership = membership_of()
    if membership is None:
        return ""
    full, shape = module._parameter_names[name], list(module._parameters[name].shape)
    ranks = str(dist.get_process_group_ranks(_resolve_process_group(module._sharding.group)))
    reads = _first_reads.setdefault(ranks, {})
    if ranks in _ended or full in reads:
        return _ended.get(ranks, "")
    reads[full] = None
    key = f"{PREFIX}reads/{short_hash(ranks)}/{len(reads)}"
    first = membership.store.compare_set(key, "", json.dumps([full, shape, membership.rank]))
    other, other_shape, rank = json.loads(first.decode())
    if other_shape != shape:
        _ended[ranks] = ""
    elif other != full:
        (one, this), (another, that) = sorted([(rank, other), (membership.rank, full)])
        _ended[ranks] = (
            f"ranks {one} and {another} gather different parameters of one shape ({' x '.join(map(str, shape))}): "
            f"as number {len(reads)}, rank {one} reads {this} and rank {another} reads {that}. "
            "Let all ranks read the same parameters in the same order: no branch by the rank or its data."
        )
    return _ended.get(ranks, "")


_running = SimpleNamespace(forward=False)
"""Whether a forward is running in eager code."""
_classes: dict[tuple[Any, ...], type] = {}
"""Modules alike have one class, so that code compiled for one serves the others."""


def put_properties(module: nn.Module, layouts: dict[str, Layout], state: ShardState) -> None:
    """Give the module a class of its own, in which the names of its sharded parameters are properties."""
    module._sharding, module._collectors = state, {}
    _change_class(module, layouts, (), _gathering)


def put_casts(module: nn.Module, state: ShardState, policy: MixedPrecisionPolicy) -> None:
    """Make it a :class:`ShardedModule`, which casts what comes in and goes out as the policy says."""
    module._sharding = state
    module._casts = (policy.param_dtype if policy.cast_forward_inputs else None, policy.output_dtype)
    _change_class(module, {}, (ShardedModule,), _casting)


def _change_class(
    module: nn.Module, layouts: dict[str, Layout], bases: tuple[type, ...], wrap: Callable[..., Any]
) -> None:
    old = type(module)
    key = (old, tuple(layouts.items()), bases)
    if key not in _classes:
        members: dict[str, Any] = {name: _property(name, layout) for name, layout in layouts.items()}
        if old.forward is not nn.Module.forward:
            members["forward"] = wrap(old.forward)
        name = f"Sharded{old.__name__.removeprefix('Sharded')}"
        _classes[key] = type(name, (*bases, old), {"__doc__": old.__doc__, **members})
    module.__class__ = _classes[key]
    own = module.__dict__.get("forward")
    if own is not None:  # replaced on the module itself, by an autocast say
        wrapped = wrap(lambda _, *args, **kwargs: own(*args, **kwargs))
        module.forward = functools.wraps(own)(partial(wrapped, module))


def _property(name: str, layout: Layout) -> property:
    def read(module: nn.Module) -> Any:
        parameter = module._parameters[name]
        if not (torch.compiler.is_compiling() or _running.forward) or not isinstance(parameter, DTensor):
            return parameter
        compare_reads(module, name)
        state, part, inside = module._sharding, parameter.to_local(), layout.inside
        again = state.again and torch.compiler.is_compiling() and torch.is_grad_enabled()
        if state.sync or not parameter.requires_grad:
            whole = gather(part, layout, state.factor, again=again)
        else:
            whole = gather(part.detach(), layout, collector=module._collectors[name], again=again)
        return whole if inside is None else as_dtensor(whole, *inside)

    return property(read)


def _gathering(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _running.forward:
            return plain(self, *args, **kwargs)
        _running.forward = True
        try:
            return plain(self, *args, **kwargs)
        finally:
            _running.forward = False

    return forward


def _casting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inputs, output = self._casts
        if inputs is not None:
            args, kwargs = tree_map(partial(_cast, inputs), (args, kwargs))
        result = plain(self, *args, **kwargs)
        return result if output is None else tree_map(partial(_cast, output), result)

    return forward


def _cast(dtype: torch.dtype, x: Any) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
