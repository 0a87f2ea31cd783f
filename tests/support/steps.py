"""Training steps small enough to run on real tensors, traced as MAGIS's workloads are."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tests.support.traced_step import Workload, language_model, repeated_pixels


class Images(nn.Module):
    """One level down and up again, beside it what was there; all kinds of layers that nets of images have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.norm, self.last = nn.GroupNorm(2, 8), nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 3, height, width)`` in and out."""
        level = torch.relu(self.norm(self.first(images)))
        below = functional.max_pool2d(repeated_pixels(torch.relu(self.inner(level))), 2)
        return torch.sigmoid(self.last(torch.cat([level, repeated_pixels(below)], 1)))


TINY = Workload("tiny", lambda: language_model(2, 32, 4), (4, 16, 32), 2 * 12 * 32 * 32)
"""Two layers of width 32."""
TINY_IMAGES = Workload("tiny images", Images, (4, 3, 16, 16), 2_067)
"""A net of images with one level."""


def tiny_inputs(workload: Workload = TINY) -> tuple[list[Tensor], list[Tensor]]:
    """Its weights, and its input and target; the same in every call."""
    torch.manual_seed(0)
    weights = [weight.detach() for weight in workload.build().parameters()]
    return weights, [torch.randn(workload.shape), torch.randn(workload.shape)]


def run_step(step: fx.GraphModule, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor:
    """Run a step as a graph; the weights are changed. Returns the loss."""
    with torch.no_grad():
        (loss,) = fx.Interpreter(step).run(*weights, *batch, torch.ones(()))
    return loss
