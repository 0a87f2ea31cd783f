"""Floating-point operations of a node, by the formulas of torch's own counter."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

Formula = Callable[..., int]


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Matmuls of groups of rows (a 2-d, b 3-d), of columns (3-d, 2-d) or of the inner dimension (2-d, 2-d).

    Together the groups cover the divided dimension once.
    """
    batches = a.shape[0] if a.dim() == 3 and b.dim() == 3 else 1
    return 2 * batches * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _mm(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    return sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


_ADDED: tuple[tuple[str, Formula], ...] = (
    ("_grouped_mm", _grouped_mm),
    ("_scaled_grouped_mm", _grouped_mm),
    ("_scaled_grouped_mm_v2", _grouped_mm),
    ("_scaled_mm_v2", _mm),
    ("_int_mm", _mm),
    ("_scaled_dot_product_flash_attention_for_cpu", _attention),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    ("_scaled_dot_product_fused_attention_overrideable", _attention),
    ("_scaled_dot_product_fused_attention_overrideable_backward", _attention_backward),
)
"""Operators that torch's counter (2.13) has no formula for. Attention counts its whole square, causal or not, as
torch's formulas do."""


@cache
def formula(target: Any) -> Formula | None:
    """The formula of a target, or ``None``: it counts as no operations."""
    key = target.overloadpacket if isinstance(target, OpOverload) else target
    if key in flop_registry:
        return flop_registry[key]
    return next((f for name, f in _ADDED if getattr(torch.ops.aten, name, None) is key), None)


class FlopCounter:
    """Counts operations, each (operator, shapes) once."""

    def __init__(self, hint: Callable[[Any], int], notes: Counter[str]) -> None:
        self.hint = hint
        self.notes = notes
        self._known: dict[Any, int] = {}

    def count(
        self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], val: Any, inputs: Sequence[fx.Node]
    ) -> int:
        """Operations of a call that gives ``val``; a formula that fails counts 0 and is noted as ``flops_failed``."""
        flops_of = formula(target)
        if flops_of is None:
            return 0
        shapes = [getattr(n.meta.get("val"), "shape", None) for n in inputs]
        # repr: lists of numbers and flags, no values; input nodes by their names, so only where they are few
        key = (target, repr(shapes), repr([_plain(a) for a in args]))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._evaluate(flops_of, args, kwargs, val)
        return known

    def _evaluate(self, flops_of: Formula, args: tuple[Any, ...], kwargs: Mapping[str, Any], val: Any) -> int:
        values, named = fx.map_arg((args, dict(kwargs)), lambda n: n.meta.get("val"))
        try:
            return self.hint(flops_of(*values, **named, out_val=val))
        except Exception:  # formulas assert what they think of shapes; a wrong cost must not stop a pass
            self.notes["flops_failed"] += 1
            return 0


def _plain(argument: Any) -> Any:
    """An argument without the nodes in it, for a key."""
    if isinstance(argument, fx.Node):
        return None
    return [_plain(a) for a in argument] if isinstance(argument, list | tuple) else argument
