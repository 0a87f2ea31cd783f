"""A training step of several sharded blocks, whose activations are more than its weights."""

import torch
from torch import Tensor, fx

from tests.support.fx_graphs import RANKS, trace
from tests.support.whole_step import Gathered

DEPTH, ROWS, WIDTH = 4, 256, 32


def step(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Blocks with a residual, a loss, gradients."""
    leaves = [weight.detach().requires_grad_() for weight in weights]
    for leaf in leaves:
        x = x + torch.nn.functional.gelu(torch.tanh(x) @ Gathered.apply(leaf))
    loss = x.square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def sharded_step() -> fx.GraphModule:
    """The step traced."""
    gm = trace(step, (ROWS, WIDTH), *[(WIDTH // RANKS, WIDTH)] * DEPTH)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm
