"""What each of two gloo ranks runs: ``python -m tests.support.checkpointed_ranks FOLDER`` as under torchrun.

Trains a small model with each common kind of activation checkpointing: by ``fully_shard``, by ``shard``, and by
``shard`` compiled. Writes ``FOLDER/rank<r>.pt``: per kind and way, the loss of each step and its gradient's norm.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from overlap_sched.distributed import shard
from tests.support.ranks import save_found

WIDTH, STEPS = 8, 2


class Attention(nn.Module):
    """With ``dropout``, it draws random numbers; torch 2.13 takes it that it always does."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), dropout

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.drop = Attention(dropout), nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.drop(torch.sin(self.attention(hidden)))


class AsHuggingFace(Layer):
    """``transformers.GradientCheckpointingLayer``: ``__call__`` of the layer itself is checkpointed."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(super().__call__, **kwargs), *args, use_reentrant=False)


class InForward(nn.Module):
    """A module that checkpoints another in its forward."""

    def __init__(self, inner: nn.Module, **given: Any) -> None:
        super().__init__()
        self.inner, self.given = inner, {"use_reentrant": False, **given}

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, **self.given)
        return result


def saves_products(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """As torchtitan's: results of matmuls and attention are kept, all else runs again."""
    kept = (torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


POLICY = functools.partial(create_selective_checkpoint_contexts, saves_products)


def one_in_another() -> nn.Module:
    layer = AsHuggingFace()
    layer.attention = InForward(layer.attention)  # type: ignore[assignment]
    return layer


KINDS: dict[str, Callable[[], nn.Module]] = {
    "Hugging Face": AsHuggingFace,
    "checkpoint_wrapper": lambda: checkpoint_wrapper(Layer()),
    "some layers": lambda: nn.Sequential(InForward(Layer()), Layer()),
    "one in another": one_in_another,
    "policy": lambda: InForward(Layer(), context_fn=POLICY),
    "checkpoint_wrapper with a policy": lambda: checkpoint_wrapper(Layer(), context_fn=POLICY),
    "random numbers": lambda: InForward(Layer(0.3)),
}


def train(kind: str, apply: Callable[..., Any], **given: Any) -> list[tuple[float, float]]:
    """(loss, norm of the gradient) of each step; ``given`` to torch.compile."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = KINDS[kind]()
    apply(model, mesh=init_device_mesh("cpu", (2,)))
    run = torch.compile(model, dynamic=False, **given) if given else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        torch.manual_seed(2 * step + dist.get_rank())
        loss = run(torch.rand(2, 4, WIDTH)).square().mean()
        loss.backward()
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        optimizer.zero_grad()
        seen.append((loss.item(), norm.full_tensor().item()))
    return seen


def found() -> dict[str, Any]:
    """Per kind and way, see the module."""
    compiled = {"fullgraph": True, "backend": "aot_eager"}
    ways = {"fully_shard": (fully_shard, {}), "eager": (shard, {}), "compiled": (shard, compiled)}
    return {kind: {way: train(kind, apply, **how) for way, (apply, how) in ways.items()} for kind in KINDS}


if __name__ == "__main__":
    save_found(found)
