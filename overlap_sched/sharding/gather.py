"""The collectives of one parameter: functional ones, so that they are nodes of a compiled graph.

    forward    part -> compute type -> (padded) -> all_gather -> wait -> whole
    backward   gradient -> reduce type -> (padded) -> reduce_scatter -> wait -> (all_reduce -> wait) -> part's type

Gradients are averaged over all ranks of the mesh as ``fully_shard`` does (torch's ``_get_gradient_divide_factors``): by
the collective where the type cannot overflow, by factors before and after it in fp16.
"""

from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from overlap_sched.sharding.layout import Layout

_C10D = torch.ops._c10d_functional
_NO_OVERFLOW = (torch.float32, torch.bfloat16)


def cache_gathers() -> None:
    """Let torch's AOTAutograd cache take graphs with these gathers: by default it leaves out autograd functions.

    Their forward and backward are graphs inside of the graph when its key is made, and part of that key. torch's
    environment variable ``TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=0`` goes before.
    """
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True


def gather(
    part: Tensor, layout: Layout, factor: float | None = None, collector: Tensor | None = None, *, again: bool
) -> Tensor:
    """The whole of a parameter.

    Args:
        part: This rank's rows, plain.
        layout: Of the parameter.
        factor: By what the sum of gradients is divided; ``None``: by the number of ranks.
        collector: A leaf of the whole's shape, of the reduce type, to which the gradient goes as it is: nothing is
            communicated in backward.
        again: In a compiled graph: gather again in backward instead of keeping the whole until then.
    """
    given = (part, collector, layout, factor)
    return _recomputed(_gather, *given) if again else _gather(*given)


def whole_from_parts(part: Tensor, layout: Layout) -> Tensor:
    """Cast and gather; rows that only pad are cut off. Nothing is sent in a group of one."""
    part = part.to(layout.compute)
    if layout.shards.size == 1:
        return part.view_as(part)
    if layout.missing:  # on all ranks alike: padded by nothing where there is nothing to pad
        part = _padded(part, layout.part)
    whole = _wait(_C10D.all_gather_into_tensor(part.contiguous(), layout.shards.size, layout.shards.name))
    return whole[: layout.rows] if layout.missing else whole


def reduced(gradient: Tensor, rows: int, layout: Layout, factor: float | None) -> Tensor:
    """This rank's rows of the mean of all ranks' gradients, in the reduce type."""
    gradient = gradient.to(layout.reduce)
    if layout.shards.size == layout.replicas.size == 1:
        return gradient if factor is None else gradient / factor
    before, op, after = _division(layout, factor)
    gradient = gradient if before == 1.0 else gradient / before
    if layout.shards.size > 1:
        if layout.missing:
            gradient = _padded(gradient, layout.part * layout.shards.size)
        gradient = _wait(_C10D.reduce_scatter_tensor(gradient.contiguous(), op, layout.shards.size, layout.shards.name))
    if layout.replicas.size > 1:
        gradient = _wait(_C10D.all_reduce(gradient.contiguous(), op, layout.replicas.name))
    gradient = gradient if after == 1.0 else gradient / after
    return gradient[:rows] if layout.missing else gradient


class _Gather(torch.autograd.Function):
    """Gathers; its backward reduces, or hands the gradient to the collector."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, collector: Tensor | None, layout: Layout, factor: float | None) -> Tensor:
        ctx.layout, ctx.factor, ctx.rows, ctx.dtype = layout, factor, part.shape[0], part.dtype
        ctx.collects = collector is not None
        return whole_from_parts(part, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if ctx.collects:
            return None, gradients[0].to(ctx.layout.reduce), None, None
        return reduced(gradients[0], ctx.rows, ctx.layout, ctx.factor).to(ctx.dtype), None, None, None


def _gather(part: Tensor, collector: Tensor | None, layout: Layout, factor: float | None) -> Tensor:
    whole: Tensor = _Gather.apply(part, collector, layout, factor)
    return whole


def _division(layout: Layout, factor: float | None) -> tuple[float, str, float]:
    """(divided by before, how it is reduced, divided by after)."""
    if layout.reduce in _NO_OVERFLOW:
        return (1.0, "avg", 1.0) if factor is None else (1.0, "sum", factor)
    whole = float(layout.shards.size * layout.replicas.size) if factor is None else factor
    before = 1.0
    while whole % before == 0 and whole / before > before:
        before *= 2
    return before, "sum", whole / before


def _padded(x: Tensor, rows: int) -> Tensor:
    return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, rows - x.shape[0]])


def _wait(launched: Tensor) -> Tensor:
    result: Tensor = _C10D.wait_tensor(launched)
    return result


def _recomputed(gather_: Any, *arguments: Any) -> Tensor:
    """A checkpoint of the gather alone: torch's partitioner puts its nodes into the backward graph once more."""
    whole: Tensor = checkpoint(gather_, *arguments, use_reentrant=False, context_fn=_recompute_all)
    return whole


def _recompute_all() -> Any:
    return create_selective_checkpoint_contexts(_always)


_recompute_all.cache_hash = "overlap_sched.sharding: gathers run again"  # type: ignore[attr-defined]
"""Without one torch's AOTAutograd cache leaves out graphs with this context. It stands for what the policy says."""


def _always(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE
