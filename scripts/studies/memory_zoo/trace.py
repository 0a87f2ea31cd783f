"""One training step as one graph: forward, loss, backward, SGD in place; on fake tensors, so that nothing is computed.

The graph is what eager PyTorch would run, operator by operator, in its order: all gradients first, then the updates,
one per parameter (``p.add_(g, alpha=-lr)``). Parameters and the batch are inputs and stay to the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.fx import lift
from overlap_sched.problem import Problem

LEARNING_RATE = 0.01

Loss = Callable[[nn.Module, Mapping[str, Tensor], Sequence[Tensor]], Tensor]
"""The loss of a model, called with these parameters and buffers, on a batch."""


def loss_of(model: nn.Module, tensors: Mapping[str, Tensor], batch: Sequence[Tensor]) -> Tensor:
    """Cross entropy of the model's output for all inputs but the last, which holds the labels."""
    logits = functional_call(model, dict(tensors), tuple(batch[:-1]))
    return nn.functional.cross_entropy(logits, batch[-1])


def step_problem(name: str, model: nn.Module, batch: Sequence[Tensor], loss: Loss, update: bool) -> Problem:
    """The graph of one step as a problem, in the ``runtime`` memory model.

    Args:
        name: Of the problem.
        model: In training mode; its parameters may be on the meta device: only their shapes are read.
        batch: What ``loss`` takes; only shapes and types are read.
        loss: See :data:`Loss`.
        update: With SGD; else the gradients are returned, and stay.
    """

    def step(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *inputs: Tensor) -> Any:
        value = loss(model, {**parameters, **buffers}, inputs)
        names = list(parameters)
        gradients = torch.autograd.grad(value, [parameters[name] for name in names], allow_unused=True)
        if not update:
            return value, gradients
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                if gradient is not None:
                    parameters[name].add_(gradient, alpha=-LEARNING_RATE)
        return value

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        parameters = {name: _fake(p).requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
        buffers = {name: _fake(b) for name, b in model.named_buffers()}
        inputs = [_fake(tensor) for tensor in batch]
    with mode:
        gm = make_fx(step)(parameters, buffers, *inputs)
    return lift(gm, name=name).problem


def _fake(tensor: Tensor) -> Tensor:
    """Of the same shape and type, on the CPU, without data where a fake mode is on."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def parameter_count(model: nn.Module) -> int:
    """All parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())
