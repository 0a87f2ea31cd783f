"""A dozen small models of the kinds that the dashboards of TorchBench and Hugging Face have, in plain torch.

They are small (at most a few million parameters) and written out here: a step of each takes about a second on one core.
Batches are large enough that activations outweigh parameters, as in training.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """A model, what it stands for, and its batch: inputs, then labels."""

    name: str
    kind: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]


class _Block(nn.Module):
    """A transformer block, attention by one kernel, or written out (``explicit``)."""

    def __init__(
        self, width: int, heads: int, causal: bool = False, explicit: bool = False, gated: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.explicit, self.gated = heads, causal, explicit, gated
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, (8 if gated else 4) * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, positions, width)``, the same out."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.explicit:
            scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            mixed = scores.softmax(-1) @ v
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = self.up(self.second(x))
        if self.gated:
            gate, inner = inner.chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * inner)
        return x + self.down(nn.functional.gelu(inner))


class _Text(nn.Module):
    def __init__(self, words: int, length: int, blocks: list[nn.Module], width: int, outputs: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits as ``(batch, outputs, positions)``."""
        return self.head(self.norm(self.blocks(self.words(x) + self.places))).transpose(1, 2)


class _Patches(nn.Module):
    """A vision transformer, or with ``mix`` an MLP-Mixer."""

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
    def __init__(self, ins: int, outs: int, stride: int = 1, groups: int = 1, expand: int = 1) -> None:
        super().__init__()
        inner = outs * expand
        self.body = nn.Sequential(
            nn.Conv2d(ins, inner, 3 if expand == 1 else 1, stride if expand == 1 else 1, int(expand == 1), bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, 1 if expand == 1 else stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outs, 1, bias=False),
            nn.BatchNorm2d(outs),
        )
        self.skip = nn.Identity() if (ins, stride) == (outs, 1) else nn.Conv2d(ins, outs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width with ``stride`` 2."""
        return nn.functional.relu(self.body(x) + self.skip(x))


def _image_net(*body: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for ins, outs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(), nn.Conv2d(outs, outs, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return _image_net(*layers, width=128)


def _resnet() -> nn.Module:
    body = (_Residual(32, 64), _Residual(64, 64), _Residual(64, 128, 2))
    return _image_net(nn.Conv2d(3, 32, 3, 2, 1), *body, width=128)


def _mobilenet() -> nn.Module:
    body = (_Residual(16, 24, 1, 96, 4), _Residual(24, 24, 1, 96, 4), _Residual(24, 32, 2, 128, 4))
    return _image_net(nn.Conv2d(3, 16, 3, 2, 1), *body, width=32)


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


def _texts(batch: int, length: int, words: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(words, (batch, length)), torch.randint(words, (batch, length)))


def _text(length: int, words: int, **how: bool) -> Callable[[], nn.Module]:
    return lambda: _Text(words, length, [_Block(192, 6, **how) for _ in range(3)], 192, words)


def _mlp() -> nn.Module:
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU())), nn.Linear(512, 100))


ENTRIES: tuple[Entry, ...] = (
    Entry("mlp", "multi-layer perceptron", _mlp, lambda: (torch.randn(4096, 512), torch.randint(100, (4096,)))),
    Entry("vgg", "convolutions without normalisation (VGG)", _vgg, _images(16, 64)),
    Entry("resnet", "residual convolutions with batch norm (ResNet)", _resnet, _images(16, 96)),
    Entry("mobilenet", "depthwise convolutions (MobileNet)", _mobilenet, _images(16, 96)),
    Entry("unet", "encoder, decoder with skips (U-Net)", _UNet, _maps),
    Entry("vit", "vision transformer", lambda: _Patches(192, [_Block(192, 6) for _ in range(3)]), _images(32, 96)),
    Entry("mixer", "MLP-Mixer", lambda: _Patches(128, [_Mix(144, 128) for _ in range(3)]), _images(32, 96)),
    Entry("bert", "encoder, attention written out (BERT)", _text(128, 2000, explicit=True), _texts(16, 128, 2000)),
    Entry("gpt", "decoder, one attention kernel (GPT)", _text(256, 2000, causal=True), _texts(8, 256, 2000)),
    Entry("llama", "decoder with gated units (Llama)", _text(256, 2000, causal=True, gated=True), _texts(8, 256, 2000)),
    Entry("gru", "recurrent, unrolled", _Recurrent, _texts(64, 12, 1000)),
    Entry(
        "dlrm",
        "recommender with large tables (DLRM)",
        _Recommender,
        lambda: (torch.randn(4096, 16), torch.randint(20_000, (4096, 8)), torch.randint(2, (4096,))),
    ),
)  # fmt: skip
"""By name."""
