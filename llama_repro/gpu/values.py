"""Random inputs for a captured graph, and the bytes behind values."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

_SCALE = 0.02
"""Standard deviation of what is drawn: small enough that products over thousands of terms stay finite in bf16."""


def random_inputs(placeholders: Sequence[fx.Node], device: torch.device, tokens: int, seed: int = 0) -> list[Any]:
    """Values for placeholders by their ``meta["val"]``: the same for the same seed and device.

    Args:
        placeholders: The inputs of a graph, in its order.
        device: Where to make them.
        tokens: Integers are drawn below this: they are indices of the vocabulary.
        seed: Of the random numbers.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return [_random(node.meta["val"], device, tokens, generator) for node in placeholders]


def _random(like: Any, device: torch.device, tokens: int, generator: torch.Generator) -> Any:
    if not isinstance(like, torch.Tensor):
        return like
    made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)
    if made.is_complex() or made.is_floating_point():
        return made.normal_(0.0, _SCALE, generator=generator)
    if made.dtype is torch.int64:
        return made.random_(0, tokens, generator=generator)
    return made.zero_()  # seeds of attention without dropout


def live_bytes(values: Iterable[Any]) -> int:
    """Bytes of the distinct storages behind tensors, however many look at one."""
    storages = {}
    for leaf in tree_leaves(list(values)):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are bitwise the same, not-a-numbers too."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(_same_bits(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
