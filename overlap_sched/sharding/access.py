"""Properties in the parameters' places. In a forward they give the whole, gathered; outside of one, the parameter.

So ``nn.init``, ``load_state_dict``, ``tie_weights`` and the like find the sharded parameters, as with ``fully_shard``,
and what computes finds whole ones. A forward is that of a module with sharded parameters in it, in eager or compiled
code; whatever is compiled counts as one.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from overlap_sched.distributed.uncompiled import uncompiled
from overlap_sched.sharding.alike import compare_reads
from overlap_sched.sharding.gather import gather
from overlap_sched.sharding.layout import Layout
from overlap_sched.sharding.state import ShardedModule, ShardState


class _Running:
    """Whether a forward is running in eager code, and whose was the first."""

    forward = False
    first: Callable[[], nn.Module | None] = staticmethod(lambda: None)


_running = _Running()
_classes: dict[tuple[type, tuple[tuple[str, Layout], ...], bool], type] = {}
"""Modules alike have one class, so that code compiled for one serves the others."""


def put_properties(module: nn.Module, layouts: dict[str, Layout], state: ShardState) -> None:
    """Give the module a class of its own, in which the names of its sharded parameters are properties."""
    module._sharding, module._collectors = state, {}
    _change_class(module, layouts, given=False)


def put_casts(module: nn.Module, state: ShardState, policy: MixedPrecisionPolicy) -> None:
    """Make it a :class:`ShardedModule`, which casts what comes in and goes out as the policy says."""
    module._sharding = state
    module._casts = (policy.param_dtype if policy.cast_forward_inputs else None, policy.output_dtype)
    _change_class(module, {}, given=True)


def _change_class(module: nn.Module, layouts: dict[str, Layout], *, given: bool) -> None:
    old = type(module)
    key = (old, tuple(layouts.items()), given)
    if key not in _classes:
        bases = (ShardedModule, old) if given else (old,)
        members: dict[str, Any] = {name: _property(name, layout) for name, layout in layouts.items()}
        if _has_forward(old):
            members["forward"] = (_casting if given else _gathering)(old.forward)
        name = old.__name__ if old.__name__.startswith("Sharded") else f"Sharded{old.__name__}"
        _classes[key] = type(name, bases, {"__doc__": old.__doc__, **members})
    module.__class__ = _classes[key]
    if "forward" in module.__dict__:  # replaced on the module itself, by an autocast say
        module.forward = _on_instance(module.__dict__["forward"], module, _casting if given else _gathering)


def _on_instance(own: Callable[..., Any], module: nn.Module, wrap: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = wrap(lambda _, *args, **kwargs: own(*args, **kwargs))

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return wrapped(module, *args, **kwargs)

    return forward


def _has_forward(module_class: type) -> bool:
    return getattr(module_class, "forward", None) is not nn.Module.forward


def _property(name: str, layout: Layout) -> property:
    def read(module: nn.Module) -> Any:
        parameter = module._parameters[name]
        if not (torch.compiler.is_compiling() or _running.forward) or not isinstance(parameter, DTensor):
            return parameter
        return _whole(module, name, parameter, layout)

    return property(read)


def _whole(module: nn.Module, name: str, parameter: DTensor, layout: Layout) -> Tensor:
    compare_reads(module, name)
    state, part = module._sharding, parameter.to_local()
    again = state.again and torch.compiler.is_compiling() and torch.is_grad_enabled()
    if state.sync or not parameter.requires_grad:
        whole = gather(part, layout, state.factor, again=again)
    else:
        whole = gather(part.detach(), layout, collector=module._collectors[name], again=again)
    inside = layout.inside
    if inside is None:
        return whole
    return DTensor.from_local(
        whole, inside.mesh, inside.placements, run_check=False, shape=inside.shape, stride=inside.stride
    )


def _gathering(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _running.forward:
            return plain(self, *args, **kwargs)
        if uncompiled.counts and torch.is_grad_enabled():
            _count(self)
        _running.forward = True
        try:
            return plain(self, *args, **kwargs)
        finally:
            _running.forward = False

    return forward


def _count(module: nn.Module) -> None:
    """A step for each further forward of the first module."""
    if _running.first() is module:
        uncompiled.step("forward")
    elif _running.first() is None:
        _running.first = weakref.ref(module)


def _casting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inputs, output = self._casts
        if inputs is not None:
            args, kwargs = tree_map(functools.partial(_cast, inputs), (args, kwargs))
        result = plain(self, *args, **kwargs)
        return result if output is None else tree_map(functools.partial(_cast, output), result)

    return forward


def _cast(dtype: torch.dtype, x: Any) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
