"""Attention as a GPU runs it, on the fake CPU tensors that a machine without a GPU can trace.

On fake CPU tensors ``scaled_dot_product_attention`` picks an operator of the CPU, or falls apart into matrix products
with a square of scores in memory. Here it becomes the operator that a GPU would run: flash attention, or, where values
have another width than keys (DeepSeek's latent attention), memory-efficient attention.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from llama_repro.capture.model import FlashAttention

_ATEN = torch.ops.aten


class EfficientAttention(torch.autograd.Function):
    """Causal attention by ``aten._scaled_dot_product_efficient_attention``: (batch, heads, sequence, width) each."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The output is as wide as ``value``."""
        out, logsumexp, seed, offset = _ATEN._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, True
        )
        ctx.save_for_backward(query, key, value, out, logsumexp, seed, offset)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""
        query, key, value, out, logsumexp, seed, offset = ctx.saved_tensors
        wanted = [True, True, True, False]
        return _ATEN._scaled_dot_product_efficient_attention_backward(
            gradients[0], query, key, value, None, out, logsumexp, seed, offset, 0.0, wanted, True
        )[:3]


@contextmanager
def attention_of_a_gpu() -> Iterator[None]:
    """Inside, ``torch.nn.functional.scaled_dot_product_attention`` is traced as a GPU would run it.

    Causal, without a mask or dropout, as all of torchtitan's language models call it; anything else raises an
    ``AssertionError``.
    """
    with mock.patch("torch.nn.functional.scaled_dot_product_attention", _attention):
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    assert is_causal, "only causal attention is traced"
    if enable_gqa and key.shape[1] != query.shape[1]:  # each key and value head serves several heads of the query
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if scale is not None:  # the operators scale by the width alone
        query = query * (scale * query.shape[-1] ** 0.5)
    same = value.shape[-1] == query.shape[-1]
    return (FlashAttention if same else EfficientAttention).apply(query, key, value)
