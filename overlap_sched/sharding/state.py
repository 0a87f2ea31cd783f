"""What one call of ``shard`` shares: its modes, and gradients that were not reduced yet.

Gradient accumulation without communication: while gradients are not synchronised, each parameter is gathered together
with a *collector*, a leaf of the whole's shape that takes no memory (one number, expanded). Autograd adds the whole
gradients up in ``collector.grad``; when synchronisation is on again, their sum is reduced into the parameter's own
gradient, outside of any graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overlap_sched.sharding.gather import reduced
from overlap_sched.sharding.layout import Layout


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
            collector = owners[0].module._collectors.get(owners[0].name)
            if not sync and collector is None and owners[0].parameter.requires_grad:
                self._collect(owners)
            elif sync and collector is not None:
                self._reduce(owners[0], collector)

    def _collect(self, owners: list[Owner]) -> None:
        layout, part = owners[0].layout, owners[0].parameter.to_local()
        one = torch.zeros((), dtype=layout.reduce, device=part.device)
        collector = one.expand(layout.rows, *part.shape[1:]).requires_grad_()
        collector.register_post_accumulate_grad_hook(partial(self._arrived, owners[0]))
        for owner in owners:
            owner.module._collectors[owner.name] = collector

    def _arrived(self, owner: Owner, collector: Tensor) -> None:
        """A gradient has been added; synchronisation may have been switched on between forward and backward."""
        if self.sync:
            self._reduce(owner, collector)

    @torch.no_grad()
    def _reduce(self, owner: Owner, collector: Tensor) -> None:
        gradient, collector.grad = collector.grad, None
        if gradient is None:
            return
        parameter = owner.parameter
        part = parameter.to_local()
        mine = reduced(gradient, part.shape[0], owner.layout, self.factor).to(part.dtype)
        if parameter.grad is not None:
            parameter.grad.to_local().add_(mine)
            return
        parameter.grad = DTensor.from_local(
            mine,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


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
