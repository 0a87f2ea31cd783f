"""Models of Hugging Face's ``transformers``, made small by their own configurations, with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

_TRANSFORMERS = "transformers"
_WORDS, _CLASSES = 2000, 100
_BLOCKS = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 768}
_TOKENS = {"vocab_size": _WORDS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


@dataclass(frozen=True)
class Entry:
    """A model, what it stands for, and its batch: inputs, then labels.

    Attributes:
        name, kind: What it is.
        build, batch: Make it, and its batch.
        library: The package that it comes from; ``""``: none but torch.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    library: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot be built here; ``""``: it can."""
        if not self.library or find_spec(self.library) is not None:
            return ""
        return f"{self.library} is not installed: pip install {self.library}"


class _Logits(nn.Module):
    """A model's logits alone, classes in the second dimension, as cross entropy wants them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, classes)``, or ``(batch, classes, positions)`` of a text."""
        same = (
            {"decoder_input_ids": x} if self.model.config.is_encoder_decoder else {}
        )  # the decoder reads the same text
        logits: Tensor = self.model(x, **same).logits
        return logits.transpose(1, 2) if logits.ndim == 3 else logits


def _built(model: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """A model by the names of its class and of its configuration's."""

    def build() -> nn.Module:
        import transformers

        return _Logits(getattr(transformers, model)(getattr(transformers, config)(use_cache=False, **sizes)))

    return build


def _images(batch: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, 96, 96), torch.randint(_CLASSES, (batch,)))


def _texts(batch: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(_WORDS, (batch, length)), torch.randint(_WORDS, (batch, length)))


_RESNET = _built(
    "ResNetForImageClassification",
    "ResNetConfig",
    embedding_size=32,
    hidden_sizes=[64, 128],
    depths=[2, 2],
    num_labels=_CLASSES,
)
_MOBILENET = _built(
    "MobileNetV2ForImageClassification",
    "MobileNetV2Config",
    image_size=96,
    depth_multiplier=0.5,
    num_labels=_CLASSES,
)
_VIT = _built("ViTForImageClassification", "ViTConfig", image_size=96, patch_size=8, num_labels=_CLASSES, **_BLOCKS)
_BERT = _built("BertForMaskedLM", "BertConfig", attn_implementation="eager", **_TOKENS, **_BLOCKS)
_GPT = _built("GPT2LMHeadModel", "GPT2Config", n_positions=256, n_embd=192, n_layer=3, n_head=6, **_TOKENS)
_LLAMA = _built("LlamaForCausalLM", "LlamaConfig", **_TOKENS, **_BLOCKS)
_T5 = _built(
    "T5ForConditionalGeneration",
    "T5Config",
    d_model=192,
    d_kv=32,
    d_ff=768,
    num_layers=2,
    num_heads=6,
    decoder_start_token_id=0,
    **_TOKENS,
)

LIBRARY: tuple[Entry, ...] = (
    Entry("resnet", "residual convolutions with batch norm (ResNet)", _RESNET, _images(16), _TRANSFORMERS),
    Entry("mobilenet", "depthwise convolutions (MobileNetV2)", _MOBILENET, _images(16), _TRANSFORMERS),
    Entry("vit", "vision transformer (ViT)", _VIT, _images(32), _TRANSFORMERS),
    Entry("bert", "encoder, attention written out (BERT)", _BERT, _texts(16, 128), _TRANSFORMERS),
    Entry("gpt", "decoder, one attention kernel (GPT-2)", _GPT, _texts(8, 256), _TRANSFORMERS),
    Entry("llama", "decoder with gated units (Llama)", _LLAMA, _texts(8, 256), _TRANSFORMERS),
    Entry("t5", "encoder and decoder (T5)", _T5, _texts(8, 128), _TRANSFORMERS),
)
"""By name."""
