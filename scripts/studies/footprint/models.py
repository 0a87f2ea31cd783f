"""A dozen small models of the kinds that the dashboards of TorchBench and Hugging Face have.

They are small (at most a few million parameters): a step of each takes about a second on one core. Batches are large
enough that activations outweigh parameters, as in training. Those that ``transformers`` has are from there
(:mod:`scripts.studies.footprint.library`); these here are written out, as their library has no build for CPUs alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scripts.studies.footprint.library import LIBRARY, Entry


class _Patches(nn.Module):
    """An image in patches, each a vector: for an MLP-Mixer."""

    def __init__(self, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.cut, self.blocks = nn.Conv2d(3, width, 8, 8), nn.Sequential(*blocks)
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.blocks(self.cut(x).flatten(2).transpose(1, 2)).mean(1))


class _Mix(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, places, width)``, the same out."""
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class _Residual(nn.Module):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(ins, outs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outs),
            nn.ReLU(),
            nn.Conv2d(outs, outs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outs),
            nn.ReLU(),
            nn.Conv2d(outs, outs, 1, bias=False),
            nn.BatchNorm2d(outs),
        )
        self.skip = nn.Identity() if ins == outs else nn.Conv2d(ins, outs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """As large as before, with ``outs`` channels."""
        return nn.functional.relu(self.body(x) + self.skip(x))


def _image_net(*body: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for ins, outs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(), nn.Conv2d(outs, outs, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return _image_net(*layers, width=128)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_Residual(3, 16), _Residual(16, 32), _Residual(32, 64)])
        self.up = nn.ModuleList([_Residual(64 + 32, 32), _Residual(32 + 16, 16)])
        self.head = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits per pixel."""
        saved = []
        for block in self.down:
            x = block(x)
            saved.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = saved.pop()
        for block in self.up:
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), saved.pop()], 1))
        return self.head(x)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(1000, 128), nn.GRUCell(128, 256), nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits as ``(batch, words, positions)``."""
        state, found = x.new_zeros(x.shape[0], 256, dtype=torch.float32), []
        for word in self.words(x).unbind(1):
            state = self.cell(word, state)
            found.append(self.head(state))
        return torch.stack(found, 2)


class _Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20_000, 32) for _ in range(8))
        self.dense = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32 + 81, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Logits."""
        first = self.dense(dense)
        each = torch.stack([first, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        return self.top(torch.cat([first, (each @ each.transpose(1, 2)).flatten(1)], 1))


def _images(batch: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, size, size), torch.randint(100, (batch,)))


def _maps() -> tuple[Tensor, ...]:
    return torch.randn(4, 3, 96, 96), torch.randint(8, (4, 96, 96))


def _mlp() -> nn.Module:
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU())), nn.Linear(512, 100))


def _words() -> tuple[Tensor, ...]:
    return torch.randint(1000, (64, 12)), torch.randint(1000, (64, 12))


def _clicks() -> tuple[Tensor, ...]:
    return torch.randn(4096, 16), torch.randint(20_000, (4096, 8)), torch.randint(2, (4096,))


def _mixer() -> nn.Module:
    return _Patches(128, [_Mix(144, 128) for _ in range(3)])


ENTRIES: tuple[Entry, ...] = (
    Entry("mlp", "multi-layer perceptron", _mlp, lambda: (torch.randn(4096, 512), torch.randint(100, (4096,)))),
    Entry("vgg", "convolutions without normalisation (VGG)", _vgg, _images(16, 64)),
    Entry("unet", "encoder, decoder with skips (U-Net)", _UNet, _maps),
    Entry("mixer", "MLP-Mixer", _mixer, _images(32, 96)),
    Entry("gru", "recurrent, unrolled", _Recurrent, _words),
    Entry("dlrm", "recommender with large tables (DLRM)", _Recommender, _clicks),
    *LIBRARY,
)
"""Those written out here, then those of a library."""
