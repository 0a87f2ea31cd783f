"""The workloads of MAGIS (ASPLOS 2024), table 2: networks, batches, types.

Networks as in ``python/magis/testing/nn`` (``resnet.py``, ``unet.py``, ``transformer.py``) of
https://github.com/pku-liang/MAGIS (commit a332abc): no biases, no batch norm ("for MAGIS and baselines"), pooling by
averages, pixels repeated to scale up; layer norms without a scale, ReLU, attention written out, no embeddings, no dropout.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.traced_step import Workload, language_model, repeated_pixels

WIDTHS = (64, 128, 256, 512, 1024)
"""Channels of U-Net and U-Net++, per level."""


def _convolution(into: int, out: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(into, out, size, stride, size // 2, bias=False)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and around it the input, projected where the shape changes."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.first = _convolution(into, width, 1)
        self.second = _convolution(width, width, 3, stride)
        self.third = _convolution(width, out, 1)
        self.around = nn.Identity() if stride == 1 and into == out else _convolution(into, out, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, into, height, width)`` to ``(batch, 4 * width, height / stride, width / stride)``."""
        inner = torch.relu(self.second(torch.relu(self.first(images))))
        return torch.relu(self.third(inner) + self.around(images))


def resnet50() -> nn.Module:
    """``(batch, 3, 224, 224)`` to ``(batch, 1000, 1, 1)``."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.AvgPool2d(3, 2, 1)]
    into = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(blocks):
            layers.append(Bottleneck(into, width, stride if at == 0 else 1))
            into = 4 * width
    return nn.Sequential(*layers, nn.AvgPool2d(7), _convolution(into, 1000, 1))


def _twice(into: int, out: int) -> nn.Module:
    return nn.Sequential(_convolution(into, out), nn.ReLU(), _convolution(out, out), nn.ReLU())


class UNet(nn.Module):
    """Down four levels and up again, each level beside the one of its size on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False))
        self.up = nn.ModuleList(_twice(a + b, b) for a, b in zip(WIDTHS[1:], WIDTHS, strict=False))
        self.narrow, self.last = _convolution(WIDTHS[0], 2), _convolution(2, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 1, height, width)`` in and out."""
        levels = []
        for down in self.down[:-1]:
            levels.append(down(images))
            images = functional.avg_pool2d(levels[-1], 2)
        images = self.down[-1](images)
        for level, up in zip(reversed(levels), reversed(self.up), strict=True):
            images = up(torch.cat([level, repeated_pixels(images)], 1))
        return torch.sigmoid(self.last(torch.relu(self.narrow(images))))


class UNetPlusPlus(nn.Module):
    """A triangle of levels: each takes what is one level below, scaled up, and all of its own level before it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_convolution(a, b) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False))
        self.up = nn.ModuleDict()
        for column in range(1, len(WIDTHS)):
            for level in range(len(WIDTHS) - column):
                into = WIDTHS[level + 1] + column * WIDTHS[level]
                self.up[f"{level}-{column}"] = _convolution(into, WIDTHS[level])
        self.last = _convolution(WIDTHS[0], 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 1, height, width)`` in and out. Each level runs as soon as it can, as in MAGIS's definition."""
        rows: list[list[Tensor]] = []
        for depth, down in enumerate(self.down):
            rows.append([torch.relu(down(images))])
            if depth + 1 < len(self.down):
                images = functional.avg_pool2d(rows[depth][0], 2)
            for column in range(1, depth + 1):
                level = depth - column
                joined = torch.cat([repeated_pixels(rows[level + 1][-1]), *reversed(rows[level])], 1)
                rows[level].append(torch.relu(self.up[f"{level}-{column}"](joined)))
        return torch.sigmoid(self.last(rows[0][-1]))


class VisionTransformer(nn.Module):
    """Patches of 16 x 16 pixels are hidden states as they are (3 x 16 x 16 is the width); classes for each patch."""

    def __init__(self, layers: int = 12, heads: int = 12, classes: int = 1000) -> None:
        super().__init__()
        self.layers = language_model(layers, 768, heads)
        self.classify = nn.Linear(768, classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 3, height, width)`` to ``(batch, patches, classes)``."""
        batch, _, height, width = images.shape
        patches = images.view(batch, 3, height // 16, 16, width // 16, 16).permute(0, 2, 4, 1, 3, 5)
        return self.classify(self.layers(patches.reshape(batch, height // 16 * (width // 16), 768)))


WORKLOADS: tuple[Workload, ...] = (
    Workload("ResNet-50", resnet50, (64, 3, 224, 224), 25_502_912),
    Workload("BERT-base", partial(language_model, 12, 768, 12), (32, 512, 768), 84_934_656),
    Workload("ViT-base/16", VisionTransformer, (64, 3, 224, 224), 85_702_656),
    Workload("U-Net", UNet, (32, 1, 256, 256), 31_372_994),
    Workload("U-Net++", UNetPlusPlus, (16, 1, 256, 256), 19_907_200),
    Workload("GPT-Neo-1.3B", partial(language_model, 24, 2048, 16), (32, 512, 2048), 1_207_959_552, torch.bfloat16),
    Workload("BTLM-3B", partial(language_model, 32, 2560, 32), (32, 512, 2560), 2_516_582_400, torch.bfloat16),
)
