"""The kernels that are timed: matrix products and attention of a graph, or of a grid of shapes; and copies.

A grid is a graph, too, traced from plain torch functions: so what is timed has the operations and bytes that the
scheduler counts, and is found again by them.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.cost.table import COPY, KernelTime
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.stopwatch import side_by_side
from overlap_sched.fx import Lifted, lift
from overlap_sched.problem import Kind

_SWEPT = {"cpu": 2**23, "cuda": 2**28}
"""Bytes that are written before each repetition, to have other things in the caches: more than a core's own, or all of
a GPU's (as ``triton.testing.do_bench`` does). In a step a kernel's inputs are seldom there."""


class KernelCall(NamedTuple):
    """An operator with arguments that are not made yet.

    Attributes:
        op, shapes, flops, bytes: As in :class:`overlap_sched.cost.table.KernelTime`.
        target: The operator.
        args, kwargs: Its arguments; fake tensors stand for real ones.
    """

    op: str
    shapes: str
    flops: int
    bytes: int
    target: Any
    args: Any
    kwargs: Any


class Grid(NamedTuple):
    """Shapes for those who have no graph yet.

    Attributes:
        matmuls: (rows, inner, columns). attentions: (batch, heads, sequence, head width).
        copies: Bytes of the tensor that is copied.
    """

    matmuls: tuple[tuple[int, int, int], ...]
    attentions: tuple[tuple[int, int, int, int], ...]
    copies: tuple[int, ...]


def _squares(smallest: int, largest: int) -> list[tuple[int, int, int]]:
    """By powers of 2."""
    sides = (2**k for k in range(smallest.bit_length() - 1, largest.bit_length()))
    return [(side, side, side) for side in sides]


CPU_GRID = Grid(
    (*_squares(64, 1024), (256, 512, 2048), (2048, 512, 256), (1024, 1024, 256)),
    ((1, 8, 128, 64), (1, 8, 256, 64), (2, 8, 512, 64)),
    tuple(2**k for k in range(12, 27, 2)),
)
GPU_GRID = Grid(
    (
        *_squares(256, 8192),
        (8192, 4096, 1024),
        (8192, 4096, 14336),
        (8192, 14336, 4096),
        (4096, 8192, 14336),
        (2048, 4096, 128256),
    ),
    ((1, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128)),
    tuple(2**k for k in range(12, 31, 2)),
)
"""Squares; a layer of Llama-3-8B at 8,192 tokens, forward and for its weights' gradients."""


def calls_in(lifted: Lifted) -> list[KernelCall]:
    """List what computes by matrix products in a graph; each operator and shape once."""
    return _calls(lifted, lambda op, flops: flops > 0)


def calls_in_grid(grid: Grid, dtype: torch.dtype, device: torch.device) -> list[KernelCall]:
    """Matrix products, attention with its backward, and copies of these shapes."""

    def step(matmuls: Any, attentions: Any, copies: Any) -> list[torch.Tensor]:
        outs = [a @ b for a, b in matmuls]
        for query, key, value in attentions:
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            outs += torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
        return [*outs, *(torch.ops.aten.clone.default(x) for x in copies)]

    with FakeTensorMode():
        matmuls = [(_empty(device, dtype, m, k), _empty(device, dtype, k, n)) for m, k, n in grid.matmuls]
        attentions = [[_empty(device, dtype, *shape).requires_grad_() for _ in range(3)] for shape in grid.attentions]
        copies = [_empty(device, torch.uint8, nbytes) for nbytes in grid.copies]
        gm = make_fx(step, tracing_mode="real")(matmuls, attentions, copies)
    return _calls(lift(gm), lambda op, flops: flops > 0 or op == COPY)


def timed_kernel(machine: Machine, call: KernelCall) -> KernelTime:
    """Time it on all ranks at once, with caches as other kernels leave them; all ranks call this."""
    args, kwargs = _made(call, machine.device)
    other = torch.zeros(_SWEPT[machine.device.type], dtype=torch.uint8, device=machine.device)
    timing = side_by_side(machine, lambda: call.target(*args, **kwargs), lambda: other.add_(1))
    return KernelTime(call.op, call.shapes, call.flops, call.bytes, timing.time_us)


def run_of(call: KernelCall, device: torch.device) -> Callable[[], object]:
    """A function that runs it once, with arguments of its own."""
    args, kwargs = _made(call, device)
    return lambda: call.target(*args, **kwargs)


def _calls(lifted: Lifted, wanted: Callable[[str, int], bool]) -> list[KernelCall]:
    found: dict[tuple[str, str], KernelCall] = {}
    for node, at in zip(lifted.problem.nodes, lifted.nodes, strict=True):
        if node.kind is Kind.COMPUTE and at.op == "call_function" and wanted(node.op, node.flops):
            args, kwargs = fx.map_arg((at.args, at.kwargs), lambda n: n.meta.get("val"))
            call = KernelCall(node.op, _shapes(args), node.flops, node.bytes, at.target, args, kwargs)
            found.setdefault((call.op, call.shapes), call)
    return list(found.values())


def _shapes(args: Iterable[Any]) -> str:
    """``"bfloat16[512,512] bfloat16[512,1536]"``; strides too where a tensor is not contiguous."""
    return " ".join(_shape(x) for x in args if isinstance(x, torch.Tensor))


def _shape(x: torch.Tensor) -> str:
    plain = f"{str(x.dtype).removeprefix('torch.')}[{','.join(map(str, map(int, x.shape)))}]"
    return plain if x.is_contiguous() else f"{plain}({','.join(map(str, map(int, x.stride())))})"


def _made(call: KernelCall, device: torch.device) -> tuple[Any, Any]:
    """The arguments: random numbers, and zeros for integers (indices, seeds)."""

    def real(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return _tensor(x, device)
        return int(x) if isinstance(x, torch.SymInt) else device if isinstance(x, torch.device) else x

    made: tuple[Any, Any] = torch.utils._pytree.tree_map(real, (tuple(call.args), dict(call.kwargs)))
    return made


def _tensor(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    shape, strides = [int(n) for n in like.shape], [int(n) for n in like.stride()]
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=like.dtype, device=device)
    length = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if like.dtype.is_floating_point:
        flat = torch.randn(length, device=device).to(like.dtype)
    else:
        flat = torch.zeros(length, dtype=like.dtype, device=device)
    return flat.as_strided(shape, strides)


def _empty(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=device)
