"""Every rule, proved: the operator is run whole and in parts, for every cut that the rule accepts, and compared.

Tensors hold small whole numbers where sums may be taken in another order, so that "equal" means equal.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.fx.dimensions.region import cut_call
from overlap_sched.fx.dimensions.rules import RULES, CallCut
from overlap_sched.transform.dimension_graph import Cut, EndsError, Uncut, cuts_of, range_cut
from tests.support.routed_graphs import call_part, put_together

A = torch.ops.aten
C10D_OPS = (
    *("all_gather_into_tensor", "all_reduce", "all_to_all_single"),
    *("broadcast", "reduce_scatter_tensor", "wait_tensor"),
)


class T(NamedTuple):
    """A tensor argument: its shape, and what fills it."""

    shape: tuple[int, ...]
    fill: str = "whole"

    def make(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.fill == "mask":
            return torch.rand(self.shape, generator=generator) < 0.5
        if self.fill == "positive":
            return torch.rand(self.shape, generator=generator, dtype=torch.float64) + 0.5
        if self.fill.startswith("below"):
            return torch.randint(int(self.fill[5:]), self.shape, generator=generator)
        if self.fill == "complex":
            pair = torch.randint(-4, 5, (*self.shape, 2), generator=generator)
            return torch.view_as_complex(pair.double())
        if self.fill == "real":
            return torch.randn(self.shape, generator=generator, dtype=torch.float64)
        return torch.randint(-4, 5, self.shape, generator=generator).double()


class Case(NamedTuple):
    """A call, and the dimensions of its first tensors along which it must be possible to cut it into ranges.

    Several tensors may be cut: 1 of argument 2 is written (2, 1). Those that end in "+" give sums.
    """

    target: Any
    args: tuple[Any, ...]
    cut: set[tuple[int, int]]
    summed: set[tuple[int, int]] = set()  # noqa: RUF012 (a named tuple; nobody adds to it)
    close: bool = False
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (the same)


M = T((4, 4, 6))
IMAGES, HALF = T((4, 4, 6, 6)), T((4, 4, 3, 3))
POOL = ([2, 2], [2, 2], [0, 0])
ATT = T((4, 4, 8, 8), "real")
CASES = {
    "add": Case(A.add.Tensor, (M, T((4, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}),
    "mul, broadcast": Case(A.mul.Tensor, (M, T((4, 1, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)}),
    "where": Case(A.where.self, (T((4, 6), "mask"), T((4, 6)), T((1, 6))), {(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)}),
    "to another type": Case(torch.ops.prims.convert_element_type.default, (M, torch.float32), {(0, 0), (0, 1), (0, 2)}),
    "view, split": Case(A.view.default, (T((8, 6)), [2, 4, 6]), {(0, 0), (0, 1)}),
    "view, joined": Case(A.view.default, (M, [16, 6]), {(0, 0), (0, 1), (0, 2)}),
    "view, all": Case(A.view.default, (M, [-1]), {(0, 0), (0, 1), (0, 2)}),
    "view, a dimension of 1": Case(A.view.default, (M, [4, 1, 24]), {(0, 0), (0, 1), (0, 2)}),
    "_unsafe_view": Case(A._unsafe_view.default, (M, [4, 24]), {(0, 0), (0, 1), (0, 2)}),
    "reshape": Case(A.reshape.default, (M, [4, 24]), {(0, 0), (0, 1), (0, 2)}),
    "expand": Case(A.expand.default, (T((4, 1, 6)), [2, 4, 8, 6]), {(0, 0), (0, 2)}),
    "expand, -1": Case(A.expand.default, (T((4, 1, 6)), [-1, 4, -1]), {(0, 0), (0, 2)}),
    "permute": Case(A.permute.default, (M, [2, 0, -2]), {(0, 0), (0, 1), (0, 2)}),
    "transpose": Case(A.transpose.int, (M, 0, -1), {(0, 0), (0, 1), (0, 2)}),
    "t": Case(A.t.default, (T((4, 6)),), {(0, 0), (0, 1)}),
    "unsqueeze": Case(A.unsqueeze.default, (M, 1), {(0, 0), (0, 1), (0, 2)}),
    "unsqueeze, behind": Case(A.unsqueeze.default, (M, -1), {(0, 0), (0, 1), (0, 2)}),
    "squeeze": Case(A.squeeze.dim, (T((4, 1, 6)), 1), {(0, 0), (0, 2)}),
    "squeeze, nothing": Case(A.squeeze.dim, (M, 0), {(0, 0), (0, 1), (0, 2)}),
    "squeeze.dims": Case(A.squeeze.dims, (T((1, 4, 1, 6)), [0, 2]), {(0, 1), (0, 3)}),
    "alias": Case(A.alias.default, (M,), {(0, 0), (0, 1), (0, 2)}),
    "detach": Case(A.detach.default, (M,), {(0, 0), (0, 1), (0, 2)}),
    "view_as_complex": Case(A.view_as_complex.default, (T((4, 6, 2)),), {(0, 0), (0, 1)}),
    "view_as_real": Case(A.view_as_real.default, (T((4, 6), "complex"),), {(0, 0), (0, 1)}),
    "slice": Case(A.slice.Tensor, (M, 1, 1, 3), {(0, 0), (0, 2)}),
    "slice, all": Case(A.slice.Tensor, (M, 1), {(0, 0), (0, 1), (0, 2)}),
    "select": Case(A.select.int, (M, 1, 2), {(0, 0), (0, 2)}),
    "split": Case(A.split.Tensor, (T((8, 4)), 4, 0), {(0, 1)}),
    "split, the last one smaller": Case(A.split.Tensor, (T((6, 4)), 4, 0), {(0, 1)}),
    "split_with_sizes": Case(A.split_with_sizes.default, (T((12, 4)), [4, 8], 0), {(0, 1)}),
    "unbind": Case(A.unbind.int, (M, 1), {(0, 0), (0, 2)}),
    "stack": Case(A.stack.default, ([T((4, 6)), T((4, 6))], -1), {(0, 0), (0, 1), (1, 0), (1, 1)}),
    "stack, in front": Case(A.stack.default, ([T((4, 6)), T((4, 6))],), {(0, 0), (0, 1), (1, 0), (1, 1)}),
    "cat": Case(A.cat.default, ([T((4, 4)), T((4, 6))], 1), {(0, 0), (1, 0)}),
    "mm": Case(A.mm.default, (T((4, 6)), T((6, 8))), {(0, 0), (1, 1)}, {(0, 1), (1, 0)}),
    "bmm": Case(A.bmm.default, (T((2, 4, 6)), T((2, 6, 8))), {(0, 0), (0, 1), (1, 0), (1, 2)}, {(0, 2), (1, 1)}),
    "addmm": Case(A.addmm.default, (T((8,)), T((4, 6)), T((6, 8))), {(1, 0), (2, 1)}),
    "addmm, a matrix": Case(A.addmm.default, (T((4, 8)), T((4, 6)), T((6, 8))), {(1, 0), (2, 1)}),
    "sum": Case(A.sum.dim_IntList, (M, [1], True), {(0, 0), (0, 2)}, {(0, 1)}),
    "sum, smaller": Case(A.sum.dim_IntList, (M, [0, -1]), {(0, 1)}, {(0, 0), (0, 2)}),
    "mean": Case(A.mean.dim, (M, [-1], True), {(0, 0), (0, 1)}),
    "mean, smaller": Case(A.mean.dim, (M, [0]), {(0, 1), (0, 2)}),
    "amax": Case(A.amax.default, (M, [1]), {(0, 0), (0, 2)}),
    "amin": Case(A.amin.default, (M, [1]), {(0, 0), (0, 2)}),
    "logsumexp": Case(A.logsumexp.default, (M, [1]), {(0, 0), (0, 2)}, close=True),
    "var": Case(A.var.correction, (M, [2]), {(0, 0), (0, 1)}, close=True),
    "var_mean": Case(A.var_mean.correction, (M, [2]), {(0, 0), (0, 1)}, close=True),
    "softmax": Case(A._softmax.default, (M, -1, False), {(0, 0), (0, 1)}, close=True),
    "log_softmax": Case(A._log_softmax.default, (M, 1, False), {(0, 0), (0, 2)}, close=True),
    "softmax backward": Case(
        A._softmax_backward_data.default, (M, M, 2, torch.float64), {(0, 0), (0, 1), (1, 0), (1, 1)}, close=True
    ),
    "log_softmax backward": Case(
        A._log_softmax_backward_data.default, (M, M, 2, torch.float64), {(0, 0), (0, 1), (1, 0), (1, 1)}, close=True
    ),
    "cumsum": Case(A.cumsum.default, (M, 1), {(0, 0), (0, 2)}),
    "topk": Case(A.topk.default, (T((4, 4, 6), "real"), 2), {(0, 0), (0, 1)}),
    "sort": Case(A.sort.default, (T((4, 4, 6), "real"),), {(0, 0), (0, 1)}),
    "layer norm": Case(A.native_layer_norm.default, (M, [6], T((6,)), T((6,)), 1e-5), {(0, 0), (0, 1)}, close=True),
    "layer norm backward": Case(
        A.native_layer_norm_backward.default,
        (M, M, [6], T((4, 4, 1)), T((4, 4, 1)), T((6,)), T((6,)), [True, True, True]),
        {(0, 0), (0, 1), (1, 0), (1, 1)},
        close=True,
    ),
    "embedding": Case(A.embedding.default, (T((10, 6)), T((4, 4), "below10")), {(1, 0), (1, 1)}),
    "embedding backward": Case(
        A.embedding_dense_backward.default,
        (M, T((4, 4), "below10"), 10, -1, False),
        set(),
        {(0, 0), (0, 1), (1, 0), (1, 1)},
    ),
    "index": Case(A.index.Tensor, (T((10, 6)), [T((4, 4), "below10")]), {(1, 0), (1, 1)}),
    "index_put": Case(A.index_put.default, (M, [T((4, 4), "mask")], T(())), {(0, 0), (0, 1)}),
    "convolution": Case(
        A.convolution.default,
        (T((4, 2, 6, 6)), T((3, 2, 3, 3)), T((3,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        {(0, 0)},
    ),
    "convolution backward": Case(
        A.convolution_backward.default,
        (
            *(T((4, 3, 6, 6)), T((4, 2, 6, 6)), T((3, 2, 3, 3)), [3]),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
        ),
        {(0, 0)},
    ),
    "max_pool2d": Case(A.max_pool2d_with_indices.default, (T((4, 2, 6, 6), "real"), [2, 2]), {(0, 0), (0, 1)}),
    "max_pool2d backward": Case(
        A.max_pool2d_with_indices_backward.default,
        (HALF, IMAGES, *POOL, [1, 1], False, T((4, 4, 3, 3), "below36")),
        {(0, 0), (0, 1), (2, 0), (2, 1)},
    ),
    "avg_pool2d backward": Case(
        A.avg_pool2d_backward.default, (HALF, IMAGES, *POOL, False, True, None), {(0, 0), (0, 1)}, close=True
    ),
    "adaptive_avg_pool2d backward": Case(A._adaptive_avg_pool2d_backward.default, (HALF, IMAGES), {(0, 0), (0, 1)}),
    "upsample": Case(A.upsample_nearest2d.default, (HALF, [6, 6]), {(0, 0), (0, 1)}),
    "upsample.vec": Case(A.upsample_nearest2d.vec, (HALF, None, [2.0, 2.0]), {(0, 0), (0, 1)}),
    "upsample backward": Case(A.upsample_nearest2d_backward.default, (IMAGES, [6, 6], [4, 4, 3, 3]), {(0, 0), (0, 1)}),
    "bilinear": Case(A.upsample_bilinear2d.default, (HALF, [6, 6], False), {(0, 0), (0, 1)}, close=True),
    "bilinear.vec": Case(A.upsample_bilinear2d.vec, (HALF, None, True, [2.0, 2.0]), {(0, 0), (0, 1)}, close=True),
    "bilinear backward": Case(
        A.upsample_bilinear2d_backward.default, (IMAGES, [6, 6], [4, 4, 3, 3], False), {(0, 0), (0, 1)}, close=True
    ),
    "pixel_shuffle": Case(A.pixel_shuffle.default, (HALF, 2), {(0, 0)}),
    "pad": Case(A.constant_pad_nd.default, (M, [1, 1], 2.0), {(0, 0), (0, 1)}),
    "pad, the first dimension": Case(A.constant_pad_nd.default, (M, [0, 0, 0, 0, 1, 0]), {(0, 1), (0, 2)}),
    "group norm": Case(
        A.native_group_norm.default, (IMAGES, T((4,)), T((4,)), 4, 4, 36, 2, 1e-5), {(0, 0)}, close=True
    ),
    "group norm backward": Case(
        A.native_group_norm_backward.default,
        (IMAGES, IMAGES, T((4, 2)), T((4, 2), "positive"), T((4,)), 4, 4, 36, 2, [True, True, True]),
        {(0, 0), (1, 0)},
        close=True,
    ),
    "batch norm, not in training": Case(
        A._native_batch_norm_legit_no_training.default,
        (IMAGES, T((4,)), T((4,)), T((4,)), T((4,), "positive"), 0.1, 1e-5),
        {(0, 0), (0, 2), (0, 3)},
        close=True,
    ),
    "batch norm, asked not to train": Case(
        A.native_batch_norm.default,
        (IMAGES, T((4,)), T((4,)), T((4,)), T((4,), "positive"), False, 0.1, 1e-5),
        {(0, 0), (0, 2), (0, 3)},
        close=True,
    ),
    "batch norm, functional": Case(
        A._native_batch_norm_legit_functional.default,
        (IMAGES, T((4,)), T((4,)), T((4,)), T((4,), "positive"), False, 0.1, 1e-5),
        {(0, 0), (0, 2), (0, 3)},
        close=True,
    ),
    "batch norm backward": Case(
        A.native_batch_norm_backward.default,
        (IMAGES, IMAGES, T((4,)), T((4,)), T((4,), "positive"), None, None, False, 1e-5, [True, True, True]),
        {(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)},
        close=True,
    ),
    "batch norm in training": Case(
        A.native_batch_norm.default, (IMAGES, T((4,)), T((4,)), None, None, True, 0.1, 1e-5), set()
    ),
    "batch norm backward in training": Case(
        A.native_batch_norm_backward.default,
        (IMAGES, IMAGES, T((4,)), None, None, T((4,)), T((4,)), True, 1e-5, [True, True, True]),
        set(),
    ),
    "sum of all": Case(A.sum.default, (M,), set(), {(0, 0), (0, 1), (0, 2)}),
    "max": Case(A.max.dim, (T((4, 4, 6), "real"), 1), {(0, 0), (0, 2)}),
    "min": Case(A.min.dim, (T((4, 4, 6), "real"), 1), {(0, 0), (0, 2)}),
    "gather": Case(A.gather.default, (T((4, 6, 8)), 1, T((4, 3, 8), "below6")), {(0, 0), (0, 2), (1, 0), (1, 2)}),
    "gather, fewer": Case(A.gather.default, (T((4, 6, 8)), 1, T((4, 3, 4), "below6")), {(0, 0), (1, 0)}),
    "another type": Case(A._to_copy.default, (M,), {(0, 0), (0, 1), (0, 2)}),
    "zeros_like": Case(A.zeros_like.default, (M,), {(0, 0), (0, 1), (0, 2)}),
    "ones_like": Case(A.ones_like.default, (M,), {(0, 0), (0, 1), (0, 2)}),
    "full_like": Case(A.full_like.default, (M, 3.0), {(0, 0), (0, 1), (0, 2)}),
    "new_empty": Case(A.new_empty.default, (M, [1]), {(0, 0), (0, 1), (0, 2)}),
    "new_zeros": Case(A.new_zeros.default, (M, [3]), {(0, 0), (0, 1), (0, 2)}),
    "new_ones": Case(A.new_ones.default, (M, [3]), {(0, 0), (0, 1), (0, 2)}),
    "new_zeros, a row for each": Case(A.new_zeros.default, (M, [4, 4, 3]), {(0, 0), (0, 1), (0, 2)}),
    "conj": Case(A._conj.default, (T((4, 6), "complex"),), {(0, 0), (0, 1)}),
    "sort, stable": Case(A.sort.stable, (T((4, 4, 6), "real"),), {(0, 0), (0, 1)}, kwargs={"stable": True}),
    "scatter": Case(A.scatter.value, (M, 2, T((4, 4, 2), "below6"), 1.0), {(0, 0), (0, 1), (1, 0), (1, 1)}),
    "scatter_": Case(A.scatter_.value, (M, 2, T((4, 4, 2), "below6"), 1.0), {(0, 0), (0, 1), (1, 0), (1, 1)}),
    "scatter of a tensor": Case(
        A.scatter.src,
        (M, 2, T((4, 4, 1), "below6"), T((4, 4, 3))),
        {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)},
    ),
    "scatter_add": Case(
        A.scatter_add.default,
        (M, 2, T((4, 4, 2), "below6"), T((4, 4, 3))),
        {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)},
    ),
    "add_": Case(A.add_.Tensor, (M, T((4, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}),
    "new_full": Case(A.new_full.default, (M, [3], 2.0), {(0, 0), (0, 1), (0, 2)}),
    "slice backward": Case(A.slice_backward.default, (M, [4, 9, 6], 1, 2, 6, 1), {(0, 0), (0, 2)}),
    "select backward": Case(A.select_backward.default, (M, [4, 3, 4, 6], 1, 2), {(0, 0), (0, 1), (0, 2)}),
    "likelihood": Case(A.nll_loss_forward.default, (T((4, 6)), T((4,), "below6"), None, 2, -100), {(0, 0), (1, 0)}),
    "likelihood of each": Case(
        A.nll_loss_forward.default, (T((4, 6)), T((4,), "below6"), None, 0, -100), {(0, 0), (1, 0)}
    ),
    "likelihood, mean": Case(A.nll_loss_forward.default, (T((4, 6)), T((4,), "below6"), None, 1, -100), set()),
    "likelihood backward": Case(
        A.nll_loss_backward.default, (T(()), T((4, 6)), T((4,), "below6"), None, 2, -100, T(())), {(1, 0), (2, 0)}
    ),
    "likelihood backward of each": Case(
        A.nll_loss_backward.default,
        (T((4,)), T((4, 6)), T((4,), "below6"), None, 0, -100, T(())),
        {(0, 0), (1, 0), (2, 0)},
    ),
    "likelihood backward, mean": Case(
        A.nll_loss_backward.default, (T(()), T((4, 6)), T((4,), "below6"), None, 1, -100, T(())), set()
    ),
    "squares": Case(A.mse_loss.default, (M, M, 2), set(), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}),
    "squares, mean": Case(A.mse_loss.default, (M, M, 1), set()),
    "squares backward": Case(
        A.mse_loss_backward.default, (T(()), M, M, 2), {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}
    ),
    "squares backward of each": Case(
        A.mse_loss_backward.default, (M, M, M, 0), {(at, dim) for at in range(3) for dim in range(3)}
    ),
    "squares backward, mean": Case(A.mse_loss_backward.default, (T(()), M, M, 1), set()),
    "avg_pool2d": Case(A.avg_pool2d.default, (T((4, 2, 6, 6)), [2, 2]), {(0, 0), (0, 1)}),
    "adaptive_avg_pool2d": Case(A._adaptive_avg_pool2d.default, (T((4, 2, 6, 6)), [3, 3]), {(0, 0), (0, 1)}),
    "attention": Case(
        A._scaled_dot_product_flash_attention_for_cpu.default,
        (ATT, ATT, ATT, 0.0, True),
        {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)},
        close=True,
    ),
    "attention with fewer heads of keys": Case(
        A._scaled_dot_product_flash_attention_for_cpu.default,
        (ATT, T((4, 2, 8, 8), "real"), T((4, 2, 8, 8), "real"), 0.0, True),
        {(0, 0), (1, 0), (2, 0)},
        close=True,
    ),
}


def built(case: Case, seed: int = 0) -> tuple[fx.Node, list[fx.Node], dict[fx.Node, Tensor]]:
    """A graph of the one call, its inputs, and their values; ``meta["val"]`` holds real results."""
    graph = fx.Graph()
    values: dict[fx.Node, Tensor] = {}

    def placed(argument: Any) -> Any:
        if isinstance(argument, T):
            node = graph.placeholder(f"x{len(values)}")
            values[node] = node.meta["val"] = argument.make(seed + len(values))
            return node
        if isinstance(argument, list):
            return [placed(one) for one in argument]
        return argument

    args = tuple(map(placed, case.args))
    node = graph.call_function(case.target, args, case.kwargs)
    node.meta["val"] = whole_of(case, args, values)
    return node, list(values), values


def whole_of(case: Case, args: tuple[Any, ...], values: dict[fx.Node, Tensor]) -> Any:
    """What the call gives; what it writes to is its own."""
    return case.target(*fx.node.map_arg(args, lambda u: values[u].clone()), **case.kwargs)


def accepted(parts: int, node: fx.Node, values: dict[fx.Node, Tensor]) -> list[tuple[int, Cut, CallCut]]:
    """Per input and cut that the rule accepts: what it says. Where it wants others of the same shape cut, they are."""
    found = []
    for at, x in enumerate(values):
        for cut in cuts_of(tuple(values[x].shape), parts):
            alike = {u: cut for u in values if values[u].shape == values[x].shape}
            for cuts in ({x: cut}, alike):
                try:
                    found.append((at, cut, cut_call(node, cuts, parts)))
                    break
                except EndsError:
                    continue
    return found


def prove(case: Case, parts: int) -> int:
    """Run whole and in parts, for every cut that is accepted; how many there are."""
    node, _, values = built(case)
    whole = whole_of(case, node.args, values)
    found = accepted(parts, node, values)
    for at, cut, said in found:
        calls = [call_part(node, said, values, parts, p) for p in range(parts)]
        results = [case.target(*args, **kwargs) for args, kwargs in calls]
        several = isinstance(said.gives, tuple)
        for k, given in enumerate(said.gives if isinstance(said.gives, tuple) else (said.gives,)):
            want = whole[k] if several else whole
            if isinstance(want, Tensor) and given is not Uncut.SAME:
                got = put_together([one[k] if several else one for one in results], given, parts)
                assert got.shape == want.shape, (at, cut)
                assert torch.allclose(got, want) if case.close else torch.equal(got, want), (at, cut, k)
    return len(found)


@pytest.mark.parametrize("name", CASES)
def test_in_parts_is_what_it_is_whole(name: str) -> None:
    case = CASES[name]
    assert prove(case, 2) >= len(case.cut | case.summed)
    for parts in (3, 4):  # of one row, too, which an operator could take for none
        prove(case, parts)


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_cut_is(name: str) -> None:
    """Ranges: what a rule refuses without need would be missed in graphs."""
    case = CASES[name]
    node, inputs, values = built(case)
    ranges = {
        (at, cut.dim): said
        for at, cut, said in accepted(2, node, values)
        if cut == range_cut(tuple(values[inputs[at]].shape), cut.dim, 2)
    }
    sums = {key for key, said in ranges.items() if said.gives is Uncut.PARTIAL}
    assert (ranges.keys() - sums, sums) == (case.cut, case.summed)


def test_every_operator_with_a_rule_is_proved() -> None:
    """Fused attention of GPUs has the rule of the CPU's; communication is proved in lockstep, over ranks."""
    proved = {case.target for case in CASES.values()}
    left = {target for target in RULES if target not in proved}
    assert {str(one).removeprefix("aten.").removesuffix(".default") for one in left} == {
        *(
            f"_scaled_dot_product_{kind}{half}"
            for kind in ("flash_attention", "efficient_attention", "cudnn_attention")
            for half in ("", "_backward")
        ),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        *("_fused_rms_norm", "_fused_rms_norm_backward"),
        *(f"_c10d_functional.{op}" for op in C10D_OPS),
    }
