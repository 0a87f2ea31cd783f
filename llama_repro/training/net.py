"""The Llama that is trained: the architecture of :mod:`llama_repro.capture.model`, as modules that Inductor compiles.

What differs from the captured one: rotations in real arithmetic, attention by PyTorch's own choice of kernel, a plain
cross entropy. A module reads a parameter as an attribute, where sharding puts a property that gathers it. Activations
are (sequence, batch, width); with tensor parallelism each rank has its part of the sequence between the blocks.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.model import repeat_heads, rms_norm
from llama_repro.capture.parallelism import Ranks, all_gather, reduce_scatter


class Norm(nn.Module):
    """RMSNorm; a module of its own, so that it can be sharded over other ranks than its block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = _parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) in and out."""
        return rms_norm(x, self.weight)


class Block(nn.Module):
    """Attention and SwiGLU, each with its norm; ``tp`` ranks share the heads and the feed-forward width."""

    def __init__(self, config: LlamaConfig, tp: Ranks | None) -> None:
        super().__init__()
        self.config, self.tp = config, tp
        hidden, ffn = config.hidden, config.ffn // config.tp
        queries, keys = hidden // config.tp, config.kv_heads * config.head_dim // config.tp
        self.attention_norm = Norm(hidden)
        self.wq, self.wk, self.wv = _parameter(queries, hidden), _parameter(keys, hidden), _parameter(keys, hidden)
        self.wo = _parameter(hidden, queries)
        self.ffn_norm = Norm(hidden)
        self.w1, self.w3, self.w2 = _parameter(ffn, hidden), _parameter(ffn, hidden), _parameter(hidden, ffn)

    @property
    def norms(self) -> tuple[Norm, Norm]:
        """What tensor-parallel ranks share."""
        return self.attention_norm, self.ffn_norm

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(sequence / tp, batch, hidden) in and out."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.ffn_norm(x))

    def attention(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Causal grouped-query attention."""
        x = self.enter(x)
        heads = (*x.shape[:2], -1, self.config.head_dim)
        query = rotate(functional.linear(x, self.wq).view(heads), cosine, sine)
        key = rotate(functional.linear(x, self.wk).view(heads), cosine, sine)
        value = functional.linear(x, self.wv).view(heads)
        times = self.config.heads // self.config.kv_heads
        key, value = repeat_heads(key, times), repeat_heads(value, times)
        query, key, value = (y.permute(1, 2, 0, 3) for y in (query, key, value))
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.leave(functional.linear(out.permute(2, 0, 1, 3).flatten(2), self.wo))

    def feed_forward(self, x: Tensor) -> Tensor:
        """SwiGLU."""
        x = self.enter(x)
        gate = functional.silu(functional.linear(x, self.w1))
        return self.leave(functional.linear(gate * functional.linear(x, self.w3), self.w2))

    def enter(self, x: Tensor) -> Tensor:
        """All tokens, before what is divided among tensor-parallel ranks."""
        return x if self.tp is None else all_gather(x.contiguous(), self.tp)

    def leave(self, x: Tensor) -> Tensor:
        """This rank's tokens of the sum over tensor-parallel ranks."""
        return x if self.tp is None else reduce_scatter(x, self.tp)


class Llama(nn.Module):
    """The model with its loss; made on the ``meta`` device, filled by sharding."""

    def __init__(self, config: LlamaConfig, tp: Ranks | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.embedding = _parameter(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config, tp) for _ in range(config.layers))
        self.norm = Norm(config.hidden)
        self.head = _parameter(config.vocabulary, config.hidden)

    def forward(self, tokens: Tensor, labels: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Mean loss over this rank's tokens.

        Args:
            tokens: (sequence / tp, batch), int64.
            labels: (sequence / tp, batch), int64.
            cosine: (sequence, 1, 1, head_dim / 2), see :func:`rotations`.
            sine: (sequence, 1, 1, head_dim / 2).
        """
        x = functional.embedding(tokens, self.embedding).to(self.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = functional.linear(self.norm(x), self.head)
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def rotations(config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles by position and pair: (sequence, 1, 1, head_dim / 2), fp32."""
    frequencies = 10000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    angles = torch.outer(torch.arange(config.sequence).float(), frequencies)[:, None, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of (sequence, batch, heads, width): pairs of neighbours turned by their angle, in fp32."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2).to(x.dtype)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, device="meta"))
