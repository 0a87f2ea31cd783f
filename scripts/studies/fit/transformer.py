"""MAGIS's transformers: matrices, layer norms without a scale, ReLU, attention written out; nothing else.

As in ``python/magis/testing/nn/transformer.py`` of https://github.com/pku-liang/MAGIS (commit a332abc): no biases, no
embeddings, no dropout, no projection to a vocabulary; the input is what the embedding would give.
"""

from torch import Tensor, nn

from tests.support.traced_step import language_model


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
