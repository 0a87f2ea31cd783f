"""MAGIS's transformers: matrices, layer norms without a scale, ReLU, attention written out; nothing else.

As in ``python/magis/testing/nn/transformer.py`` of https://github.com/pku-liang/MAGIS (commit a332abc): no biases, no
embeddings, no dropout, no projection to a vocabulary; the input is what the embedding would give.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """One layer: attention and a multilayer perceptron four times as wide, each behind a layer norm and around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.project = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``(batch, sequence, width)`` in and out."""
        hidden = hidden + self._attention(functional.layer_norm(hidden, hidden.shape[-1:]))
        inner = self.widen(functional.layer_norm(hidden, hidden.shape[-1:]))
        return hidden + self.narrow(torch.relu(inner))

    def _attention(self, hidden: Tensor) -> Tensor:
        batch, sequence, width = hidden.shape
        by_head = (batch, sequence, self.heads, width // self.heads)
        query, key, value = (
            matrix(hidden).view(by_head).transpose(1, 2) for matrix in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        out = torch.softmax(scores, -1) @ value
        return self.project(out.transpose(1, 2).reshape(batch, sequence, width))


def language_model(layers: int, width: int, heads: int) -> nn.Module:
    """``(batch, sequence, width)`` in and out."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)))


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
