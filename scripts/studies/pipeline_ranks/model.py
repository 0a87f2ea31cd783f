"""A model of layers alike, in stages; a layer computes, or sleeps as long as one would."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import linear


@dataclass(frozen=True)
class Model:
    """Of ``layers`` layers; ``sleeps_s``: of forward, of the input's and of the weights' gradient, seconds per layer.

    Without sleeps a layer computes for real. ``rows`` are those of a micro-batch.
    """

    layers: int
    rows: int
    width: int
    sleeps_s: tuple[float, float, float] | None

    @property
    def output_bytes(self) -> int:
        """What one stage sends to the next for a micro-batch."""
        return self.rows * self.width * 4

    def stages(self, indices: list[int], count: int) -> list[PipelineStage]:
        """Some of the stages, with weights that do not depend on how many there are."""
        torch.manual_seed(0)
        layers = [_Layer(self.width, self.sleeps_s) for _ in range(self.layers)]
        size, device = self.layers // count, torch.device("cpu")
        return [PipelineStage(nn.Sequential(*layers[s * size : (s + 1) * size]), s, count, device) for s in indices]


class _Layer(nn.Module):
    def __init__(self, width: int, sleeps_s: tuple[float, float, float] | None) -> None:
        super().__init__()
        inner = width if sleeps_s is not None else 4 * width
        self.up = nn.Parameter(torch.randn(inner, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(width, inner) / inner**0.5)
        self.sleeps_s = sleeps_s

    def forward(self, x: Tensor) -> Tensor:
        up = self.up
        if self.sleeps_s is not None:
            forward_s, input_s, weight_s = self.sleeps_s
            time.sleep(forward_s)
            x, up = _SleepInBackward.apply(x, input_s), _SleepInBackward.apply(up, weight_s)
        return x + linear(torch.tanh(linear(x, up)), self.down)


class _SleepInBackward(torch.autograd.Function):
    """Of an input, the time of its gradient; of a weight, the time of the weight's: torch's halves pass one each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None
