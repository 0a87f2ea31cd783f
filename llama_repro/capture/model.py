"""A compact Llama, written for capture: functions of tensors, every weight gathered where it is used.

RMSNorm, rotary embeddings as complex products, grouped-query attention through the flash-attention operator,
SwiGLU, and a cross entropy fused with the output projection. Activations are ``(sequence, batch, width)`` in bf16;
norms, rotations and the loss compute in fp32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.parallelism import GatherWeight, Mesh, Ranks, all_reduce, enter_block, leave_block

_EPSILON = 1e-5
_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Weight:
    """A parameter as one tensor-parallel rank has it, before it is sharded.

    ``shared``: all tensor-parallel ranks hold the same, so that each has but a part of its gradient.
    """

    name: str
    shape: tuple[int, ...]
    shared: bool = False


def weights_of(config: LlamaConfig) -> list[Weight]:
    """All parameters in the order of the forward pass: 9 per layer, embedding, last norm, output projection."""
    hidden, ffn = config.hidden, config.ffn // config.tp
    queries, keys = hidden // config.tp, config.kv_heads * config.head_dim // config.tp
    result = [Weight("embedding", (config.vocabulary, hidden), shared=True)]
    for i in range(config.layers):
        result += [
            Weight(f"{i}.attention_norm", (hidden,), shared=True),
            Weight(f"{i}.wq", (queries, hidden)),
            Weight(f"{i}.wk", (keys, hidden)),
            Weight(f"{i}.wv", (keys, hidden)),
            Weight(f"{i}.wo", (hidden, queries)),
            Weight(f"{i}.ffn_norm", (hidden,), shared=True),
            Weight(f"{i}.w1", (ffn, hidden)),
            Weight(f"{i}.w3", (ffn, hidden)),
            Weight(f"{i}.w2", (hidden, ffn)),
        ]
    return [*result, Weight("norm", (hidden,), shared=True), Weight("head", (config.vocabulary // config.tp, hidden))]


@dataclass(frozen=True)
class Weights:
    """The sharded parameters; asking for one gathers it."""

    shards: Mapping[str, Tensor]
    mesh: Mesh
    shared: frozenset[str]

    def __getitem__(self, name: str) -> Tensor:
        partial = self.mesh.tp if name in self.shared else None
        return GatherWeight.apply(self.shards[name], self.mesh.fsdp, torch.bfloat16, "avg", partial)


class FlashAttention(torch.autograd.Function):
    """Causal attention by ``aten._scaled_dot_product_flash_attention``, whatever the device it is traced on."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch, heads, sequence, width) each, and out."""
        out, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, _ = _ATEN._scaled_dot_product_flash_attention(
            query, key, value, 0.0, True
        )
        ctx.save_for_backward(query, key, value, out, logsumexp, seed, offset)
        ctx.lengths = (cum_q, cum_k, max_q, max_k)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""
        query, key, value, out, logsumexp, seed, offset = ctx.saved_tensors
        return _ATEN._scaled_dot_product_flash_attention_backward(
            gradients[0], query, key, value, out, logsumexp, *ctx.lengths, 0.0, True, seed, offset
        )


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of ``hidden @ weight.T``; the gradient of the logits is made in the forward pass.

    As fused loss kernels do it: no fp32 logits are kept, and backward is two matrix products. The vocabulary may be
    split over tensor-parallel ranks. ``hidden`` is (tokens, width), ``weight`` (vocabulary / ranks, width), ``labels``
    (tokens,) counted from this rank's first entry of the vocabulary.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, tp: Ranks | None) -> Tensor:
        """The loss; see the class."""
        logits = (hidden @ weight.t()).float()
        top = all_reduce(logits.amax(-1, keepdim=True), tp, "max")
        exponentials = (logits - top).exp()
        total = all_reduce(exponentials.sum(-1, keepdim=True), tp)
        mine = (labels >= 0) & (labels < weight.shape[0])
        at = torch.where(mine, labels, 0).unsqueeze(-1)
        hit = mine.unsqueeze(-1).float()
        target = all_reduce((logits - top).gather(-1, at) * hit, tp)
        gradient = (exponentials / total).scatter_add(-1, at, -hit) / labels.numel()
        ctx.save_for_backward(hidden, weight, gradient.to(hidden.dtype))
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Gradients of ``hidden`` and ``weight``; the scale of the loss goes to the smaller factor."""
        hidden, weight, logits_gradient = ctx.saved_tensors
        scale = gradients[0].to(hidden.dtype)
        weight_gradient = logits_gradient.t() @ (hidden * scale)
        return (logits_gradient @ weight) * scale, weight_gradient, None, None


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, in fp32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPSILON)
    return (normed * weight).to(x.dtype)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding of (sequence, batch, heads, width) by complex (sequence, width / 2)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * rotation.view(rotation.shape[0], 1, 1, rotation.shape[1])
    return torch.view_as_real(turned).flatten(3).to(x.dtype)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Each key/value head ``times`` times in a row: (sequence, batch, heads * times, width)."""
    sequence, batch, heads, width = x.shape
    return x[:, :, :, None, :].expand(sequence, batch, heads, times, width).reshape(sequence, batch, -1, width)


def attention(x: Tensor, weights: Weights, layer: int, rotation: Tensor, config: LlamaConfig) -> Tensor:
    """Grouped-query attention of one layer, with its norm and output projection."""
    tp = weights.mesh.tp
    x = enter_block(rms_norm(x, weights[f"{layer}.attention_norm"]), tp)
    heads = (*x.shape[:2], -1, config.head_dim)
    query = functional.linear(x, weights[f"{layer}.wq"]).view(heads)
    key = functional.linear(x, weights[f"{layer}.wk"]).view(heads)
    value = functional.linear(x, weights[f"{layer}.wv"]).view(heads)
    times = config.heads // config.kv_heads
    query, key = rotate(query, rotation), rotate(key, rotation)
    key, value = enter_block(key, weights.mesh.cp), enter_block(value, weights.mesh.cp)
    key, value = repeat_heads(key, times), repeat_heads(value, times)
    out = FlashAttention.apply(*(y.permute(1, 2, 0, 3) for y in (query, key, value)))
    out = out.permute(2, 0, 1, 3).reshape(*x.shape[:2], -1)
    return leave_block(functional.linear(out, weights[f"{layer}.wo"]), tp)


def feed_forward(x: Tensor, weights: Weights, layer: int) -> Tensor:
    """SwiGLU of one layer, with its norm."""
    tp = weights.mesh.tp
    x = enter_block(rms_norm(x, weights[f"{layer}.ffn_norm"]), tp)
    gate = functional.silu(functional.linear(x, weights[f"{layer}.w1"]))
    return leave_block(
        functional.linear(gate * functional.linear(x, weights[f"{layer}.w3"]), weights[f"{layer}.w2"]), tp
    )


def llama_loss(config: LlamaConfig, weights: Weights, tokens: Tensor, labels: Tensor, rotation: Tensor) -> Tensor:
    """The training loss of one rank.

    Args:
        config: Sizes.
        weights: Sharded parameters.
        tokens: (sequence / tp, batch), int64.
        labels: (sequence, batch), int64.
        rotation: (sequence, head_dim / 2), complex64.
    """
    x = functional.embedding(tokens, weights["embedding"])
    for layer in range(config.layers):
        x = x + attention(x, weights, layer, rotation, config)
        x = x + feed_forward(x, weights, layer)
    x = enter_block(rms_norm(x, weights["norm"]), weights.mesh.tp)
    if config.plain_loss:
        logits = enter_block(functional.linear(weights["head"], x.flatten(0, 1)), weights.mesh.tp)
        return functional.cross_entropy(logits.t().float(), labels.flatten())
    return LinearCrossEntropy.apply(x.flatten(0, 1), weights["head"], labels.flatten(), weights.mesh.tp)
