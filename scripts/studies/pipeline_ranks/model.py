"""A model of layers alike, in stages; a layer computes, or sleeps as long as one would."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import linear

SLEEPS_S = 0.010, 0.011, 0.009
"""Of a layer that sleeps: forward, gradient of the input, gradient of the weights."""


def batch_shape(sleeps: bool) -> tuple[int, int]:
    """Rows and width of a micro-batch."""
    return (16, 64) if sleeps else (128, 512)


def stages_of(layers: int, sleeps: bool, indices: list[int], count: int) -> list[PipelineStage]:
    """Some of the stages, with weights that do not depend on how many there are."""
    torch.manual_seed(0)
    whole, size = [_Layer(batch_shape(sleeps)[1], sleeps) for _ in range(layers)], layers // count
    parts = {s: nn.Sequential(*whole[s * size : (s + 1) * size]) for s in indices}
    return [PipelineStage(part, s, count, torch.device("cpu")) for s, part in parts.items()]


class _Layer(nn.Module):
    def __init__(self, width: int, sleeps: bool) -> None:
        super().__init__()
        self.sleeps, inner = sleeps, width if sleeps else 4 * width
        self.up = nn.Parameter(torch.randn(inner, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(width, inner) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up
        if self.sleeps:
            forward_s, input_s, weight_s = SLEEPS_S
            time.sleep(forward_s)
            x, up = _SleepInBackward.apply(x, input_s), _SleepInBackward.apply(up, weight_s)
        return x + linear(torch.tanh(linear(x, up)), self.down)


class _SleepInBackward(torch.autograd.Function):
    """On the way to an input, the time of its gradient; on that to a weight, of the weight's: each half has one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None
