"""Result shapes of higher-order operators, from their tensors alone: their bodies and kernels are not in a dump.

Shapes of ``flex_attention`` and its backward follow the fake implementations in
``torch._higher_order_ops.flex_attention``, torch 2.13; a Triton kernel's results look like the tensors passed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Body = Callable[[Any, Sequence[Any]], Any]
"""Runs the printed body of a submodule on values; returns None where the dump has no body for it."""


def hop_result(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], body: Body) -> Any:
    """The value of ``torch.ops.higher_order.<name>(*args, **kwargs)``, to be called under the fake mode.

    Returns NotImplemented for operators whose result cannot be told.
    """
    results = [body(*call) for call in _BODIES[name](args)] if name in _BODIES else [None]
    rule = _RULES.get(name)
    if rule is not None:
        return rule(*args, **kwargs)
    return NotImplemented if results[0] is None else results[0]


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor with its strides, gaps included."""
    needed = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    return tensor.new_empty(needed).as_strided(tensor.shape, tensor.stride())


def _permuted(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """An empty tensor of `shape` whose dimensions lie in memory as those of `like`, the last one innermost."""
    inner_first = sorted(range(like.dim() - 1), key=lambda i: (like.stride(i), -i))
    strides, step = [1] * like.dim(), shape[-1]
    for i in inner_first:
        strides[i] = step
        step *= shape[i]
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


def _triton_functional(*, kwargs: Mapping[str, Any], tensors_to_clone: Sequence[str], **_: Any) -> dict[str, Any]:
    return {name: _clone(value) for name, value in kwargs.items() if name in tensors_to_clone}


def _flex_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
    batch, heads, rows, _dim = query.shape
    statistic = query.new_empty((batch, heads, rows), dtype=torch.float32)
    out = _permuted((batch, heads, rows, value.shape[-1]), query)
    return out, statistic, torch.empty_like(statistic)


def _flex_attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
    **_: Any,
) -> Any:
    captured = rest[9] if len(rest) > 9 else score_mod_other_buffers
    batch = query.shape[0]
    grads = [_permuted(query.shape, query)]
    for tensor in (key, value):
        grad = _permuted((batch, *tensor.shape[1:]), tensor)
        shared = batch > 1 and tensor.shape[0] == 1
        grads.append(torch.sum(grad, dim=0, keepdim=True) if shared else grad)
    contiguous = torch.contiguous_format
    buffers = [torch.empty_like(b, memory_format=contiguous) if isinstance(b, torch.Tensor) else None for b in captured]
    return (*grads, tuple(buffers))


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(op, torch._ops.OpOverload):
        return op(*args, **kwargs)
    return NotImplemented


def _with_effects(token: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    result = _call(op, *args, **kwargs)
    if result is NotImplemented:
        return result
    token = torch.empty_like(token) if isinstance(token, torch.Tensor) else torch.empty(0)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _save_rng_state(op: Any, *args: Any, **kwargs: Any) -> Any:
    result = _call(op, *args, **kwargs)
    return result if result is NotImplemented else (torch.empty(16, dtype=torch.uint8, device="cpu"), result)


def _while_loop(cond: Any, body: Any, carried: Sequence[Any], *_: Any) -> tuple[Any, ...]:
    """Return what looks like a loop's input, as its results do: its body may not change shapes."""
    return tuple([_clone(item) if isinstance(item, torch.Tensor) else item for item in carried])


def _torch_own(name: str) -> Callable[..., Any]:
    """Run torch's own operator: those that only call the operator given as their first argument.

    Where that one is unknown: what it writes is known all the same (``_all_bases``), and most such return nothing else.
    """

    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(op, torch._ops.OpOverload):
            bases = kwargs.get("_all_bases")
            return NotImplemented if bases is None else (None, *[_clone(base) for base in bases])
        return getattr(torch.ops.higher_order, name)(op, *args, **kwargs)

    return run


_RULES: Mapping[str, Callable[..., Any]] = {
    "triton_kernel_wrapper_functional": _triton_functional,
    "triton_kernel_wrapper_mutation": lambda **_: None,
    "flex_attention": _flex_attention,
    "flex_attention_backward": _flex_attention_backward,
    "with_effects": _with_effects,
    "run_and_save_rng_state": _save_rng_state,
    "run_with_rng_state": lambda state, op, *args, **kwargs: _call(op, *args, **kwargs),
    "graphsafe_run_with_rng_state": lambda op, *args, rng_state=None, **kwargs: _call(op, *args, **kwargs),
    "auto_functionalized": _torch_own("auto_functionalized"),
    "auto_functionalized_v2": _torch_own("auto_functionalized_v2"),
    "while_loop": _while_loop,
    "print": lambda *_, **__: None,
}

# what is called with what: (submodule, its operands), the one that gives the result first
_BODIES: Mapping[str, Callable[[Sequence[Any]], list[tuple[Any, Sequence[Any]]]]] = {
    "invoke_subgraph": lambda args: [(args[0], args[2:])],
    "cond": lambda args: [(args[1], args[3]), (args[2], args[3])],
    "control_deps": lambda args: [(args[1], args[2:])],
    "while_loop": lambda args: [(run, [*args[2], *(args[3] if len(args) > 3 else ())]) for run in args[:2]],
    **dict.fromkeys(
        ("local_map_hop", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"),
        lambda args: [(args[0], args[1:])],
    ),
}
