"""The models: from torchvision and transformers without weights, checked by their number of parameters.

Images are 224 x 224 (video: 16 frames of 112 x 112). Attention is written out (``attn_implementation="eager"``), as
in the systems that are compared with. Neither library is needed by anything else: a model whose library is missing is
left out of the table, which says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scripts.studies.memory_zoo.trace import Loss, loss_of


@dataclass(frozen=True)
class Entry:
    """A model of the table.

    Attributes:
        name: In the table.
        library: What it comes from: ``torchvision``, ``transformers`` or ``torch``.
        build: Makes it, in training mode.
        batch: Inputs and labels for a batch size.
        parameters: How many it must have.
        loss: Its loss.
        batches: Batch sizes in the table.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Sequence[Tensor]]
    parameters: int
    loss: Loss = loss_of
    batches: tuple[int, ...] = (1, 32)


def _vision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return getattr(_torchvision(), name)().train()

    return build


def _torchvision() -> Any:
    """Its models; its CPU operators, which these models do not use, may be missing in a build for another torch."""
    try:
        import torchvision.models as models
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision.models as models
    return models


def _video() -> nn.Module:
    return _torchvision().video.r3d_18().train()


def _images(*shape: int) -> Callable[[int], Sequence[Tensor]]:
    def batch(size: int) -> Sequence[Tensor]:
        return torch.empty(size, *shape, device="meta"), torch.empty(size, dtype=torch.long, device="meta")

    return batch


class _Translator(nn.Module):
    """``nn.Transformer`` as it comes (6 + 6 layers of width 512), between two embeddings and a projection."""

    def __init__(self, words: int = 10_000, width: int = 512) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.transformer = nn.Transformer(width, batch_first=True)
        self.project = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits as ``(batch, words, positions)``."""
        hidden = self.transformer(self.source(source), self.target(target))
        return self.project(hidden).transpose(1, 2)


def _sentences(length: int) -> Callable[[int], Sequence[Tensor]]:
    def batch(size: int) -> Sequence[Tensor]:
        return tuple(torch.empty(size, length, dtype=torch.long, device="meta") for _ in range(3))

    return batch


def _language(config: str, model: str, **changes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(attn_implementation="eager", **changes)
        with torch.device("meta"):
            return getattr(transformers, model)(settings).train()

    return build


def _text_loss(*labels: str) -> Loss:
    """The loss that the model itself gives for labels of these names."""

    def loss(model: nn.Module, tensors: Mapping[str, Tensor], batch: Sequence[Tensor]) -> Tensor:
        given = {"input_ids": batch[0], "attention_mask": torch.ones_like(batch[0])}
        given |= zip(labels, batch[1:], strict=True)
        return functional_call(model, dict(tensors), (), given).loss

    return loss


_masked_lm, _answers = _text_loss("labels"), _text_loss("start_positions", "end_positions")


def _classes(model: nn.Module, tensors: Mapping[str, Tensor], batch: Sequence[Tensor]) -> Tensor:
    words, labels = batch
    given = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    logits = functional_call(model, dict(tensors), (), given).logits
    return nn.functional.cross_entropy(logits, labels)


def _texts(length: int, loss: Loss) -> Callable[[int], Sequence[Tensor]]:
    """Words, and labels as the loss takes them: for each word, for each text, or two positions in each text."""

    def batch(size: int) -> Sequence[Tensor]:
        words = torch.empty(size, length, dtype=torch.long, device="meta")
        each = torch.empty(size, dtype=torch.long, device="meta")
        return {_masked_lm: (words, words), _classes: (words, each), _answers: (words, each, each)}[loss]

    return batch


_CLASSIFIER = "XLMRobertaForSequenceClassification"
_XLM = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def _text_entry(
    name: str, config: str, head: str, parameters: int, length: int, loss: Loss = _masked_lm, **changes: Any
) -> Entry:
    return Entry(name, "transformers", _language(config, head, **changes), _texts(length, loss), parameters, loss)


def _image_entry(name: str, model: str, parameters: int, more: tuple[int, ...] = ()) -> Entry:
    return Entry(name, "torchvision", _vision(model), _images(3, 224, 224), parameters, batches=(1, 32, *more))


ENTRIES: tuple[Entry, ...] = (
    _image_entry("AlexNet", "alexnet", 61_100_840, (128,)),
    _image_entry("VGG16", "vgg16", 138_357_544, (64,)),
    _image_entry("ResNet18", "resnet18", 11_689_512),
    _image_entry("ResNet50", "resnet50", 25_557_032),
    _image_entry("MobileNetV2", "mobilenet_v2", 3_504_872),
    _image_entry("MNASNet", "mnasnet1_0", 4_383_312),
    Entry("ResNet3D-18", "torchvision", _video, _images(3, 16, 112, 112), 33_371_472),
    _image_entry("ViT-B/16", "vit_b_16", 86_567_656),
    Entry("Transformer", "torch", lambda: _Translator().train(), _sentences(128), 59_510_544),
    _text_entry("BERT-base MLM", "BertConfig", "BertForMaskedLM", 109_514_298, 128),
    _text_entry("XLM-R classifier", "XLMRobertaConfig", _CLASSIFIER, 278_045_186, 128, _classes, **_XLM),
    _text_entry("DeBERTa-v2 QA", "DebertaV2Config", "DebertaV2ForQuestionAnswering", 877_510_658, 512, _answers),
    _text_entry("DeBERTa-v2 MLM", "DebertaV2Config", "DebertaV2ForMaskedLM", 879_999_588, 512),
    _text_entry("Albert QA", "AlbertConfig", "AlbertForQuestionAnswering", 205_822_466, 512, _answers),
    _text_entry("Albert MLM", "AlbertConfig", "AlbertForMaskedLM", 206_368_944, 512),
    _text_entry("MobileBERT QA", "MobileBertConfig", "MobileBertForQuestionAnswering", 24_582_914, 512, _answers),
    _text_entry("MobileBERT MLM", "MobileBertConfig", "MobileBertForMaskedLM", 36_596_538, 512),
)
