"""A training step small enough to run on real tensors, traced as MAGIS's workloads are."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from llama_repro.workloads.models import Workload
from llama_repro.workloads.transformer import language_model

TINY = Workload("tiny", lambda: language_model(2, 32, 4), (4, 16, 32), 2 * 12 * 32 * 32)
"""Two layers of width 32."""


def tiny_inputs() -> tuple[list[Tensor], list[Tensor]]:
    """Its weights, and its input and target; the same in every call."""
    torch.manual_seed(0)
    weights = [weight.detach() for weight in TINY.build().parameters()]
    return weights, [torch.randn(TINY.shape), torch.randn(TINY.shape)]


def run_step(step: fx.GraphModule, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor:
    """Run a step as a graph; the weights are changed. Returns the loss."""
    with torch.no_grad():
        (loss,) = fx.Interpreter(step).run(*weights, *batch, torch.ones(()))
    return loss
