"""Which models are captured: sizes and the fake world they are sharded over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from overlap_sched.errors import OptionsError

_Entry = TypeVar("_Entry")

MATRICES = ("wq", "wk", "wv", "wo", "w1", "w3", "w2")
"""The matrices of one layer, in the order in which the forward pass multiplies by them."""


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama and the world it is trained in.

    Attributes:
        name: What ``--config`` takes.
        hidden, ffn, layers, heads, kv_heads, vocabulary: The model's sizes.
        batch, sequence: Sequences per rank and tokens per sequence (before tensor parallelism splits them).
        fsdp: Ranks over which every parameter is sharded.
        tp: Ranks of tensor parallelism (1: none). The world has ``fsdp * tp`` ranks.
        cp: Of the ``fsdp`` ranks, how many share a sequence (context parallelism; 1: none). ``sequence`` is then what
            one of them has. For times and sizes only: the causal mask is the first rank's on all of them.
        recompute: What backward computes again: ``"selective"`` is torchtitan's, by operator; ``"full"``: all of a
            layer; ``"none"``: only what lies between matrix products.
        bf16_parameters: Whether shards are in bf16, not in fp32; gradients are reduced in fp32 anyway.
        plain_loss: Whether the loss is cross entropy of all logits in fp32, gathered over tensor-parallel ranks.
    """

    name: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    batch: int
    sequence: int
    fsdp: int
    tp: int = 1
    cp: int = 1
    recompute: Literal["selective", "full", "none"] = "selective"
    bf16_parameters: bool = False
    plain_loss: bool = False

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.fsdp * self.tp

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


CONFIGS = {
    config.name: config
    for config in (
        LlamaConfig("llama1d", 8192, 28672, 32, 64, 8, 128256, 2, 8192, fsdp=64),
        LlamaConfig("llama3-8b", 4096, 14336, 32, 32, 8, 128256, 2, 8192, fsdp=64),
        LlamaConfig("llama3-8b-2d", 4096, 14336, 32, 32, 8, 128256, 1, 8192, fsdp=8, tp=8),
        LlamaConfig("tiny", 256, 512, 2, 8, 4, 512, 2, 128, fsdp=8),
        LlamaConfig("tiny-2d", 256, 512, 2, 8, 4, 512, 2, 128, fsdp=4, tp=2),
    )
}
"""``llama1d`` is of the published regression's size (torch's ``llama1d_bwd``: 290 all_gather, 291 reduce_scatter)."""


def find_config(name: str) -> LlamaConfig:
    """The configuration of that name.

    Raises:
        OptionsError: There is none; the message lists those there are.
    """
    return look_up(CONFIGS, name, "config")


def look_up(table: Mapping[str, _Entry], name: str, what: str) -> _Entry:
    """The entry of that name in a table of ``what``.

    Raises:
        OptionsError: There is none; the message lists those there are.
    """
    if name not in table:
        raise OptionsError(f"{what} is {name!r}; it is one of {', '.join(table)}.")
    return table[name]
