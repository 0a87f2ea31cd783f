"""An independent Llama in plain fp32 PyTorch, unsharded: what the captured graphs must compute."""

import torch
import torch.nn.functional as functional
from torch import Tensor

from llama_repro.capture.configs import LlamaConfig


def reference_loss(config: LlamaConfig, weights: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy; ``tokens`` and ``labels`` are (batch, sequence)."""
    x = functional.embedding(tokens, weights["embedding"])
    for i in range(config.layers):
        x = x + _attention(
            config, functional.rms_norm(x, (config.hidden,), weights[f"{i}.attention_norm"], 1e-5), weights, i
        )
        y = functional.rms_norm(x, (config.hidden,), weights[f"{i}.ffn_norm"], 1e-5)
        gate = functional.silu(y @ weights[f"{i}.w1"].T) * (y @ weights[f"{i}.w3"].T)
        x = x + gate @ weights[f"{i}.w2"].T
    x = functional.rms_norm(x, (config.hidden,), weights["norm"], 1e-5)
    return functional.cross_entropy((x @ weights["head"].T).flatten(0, 1), labels.flatten())


def angles(config: LlamaConfig) -> Tensor:
    """Rotation angle by position and pair: (sequence, head_dim / 2)."""
    frequencies = 10000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    return torch.outer(torch.arange(config.sequence).float(), frequencies)


def _attention(config: LlamaConfig, x: Tensor, weights: dict[str, Tensor], layer: int) -> Tensor:
    def heads(name: str) -> Tensor:
        return (x @ weights[f"{layer}.{name}"].T).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)

    query, key, value = _rotate(heads("wq"), config), _rotate(heads("wk"), config), heads("wv")
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ weights[f"{layer}.wo"].T


def _rotate(x: Tensor, config: LlamaConfig) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    cosine, sine = angles(config).cos(), angles(config).sin()
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
