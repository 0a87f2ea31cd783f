"""Every rule, proved: the operator is run whole and in parts, for every cut that the rule accepts, and compared.

Tensors hold small whole numbers where sums may be taken in another order, so that "equal" means equal.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.fx.dimensions.region import cut_call
from overlap_sched.fx.dimensions.rules import RULES, CallCut, overloads, results
from overlap_sched.transform.dimension_graph import Cut, EndsError, Uncut, cuts_of, range_cut
from tests.support.routed_graphs import call_part, put_together


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
    """A call, and the dimensions along which it must be possible to cut it into ranges: 1 of tensor 2 is (2, 1)."""

    op: Any
    args: tuple[Any, ...]
    cut: set[tuple[int, int]]
    summed: set[tuple[int, int]] = set()  # noqa: RUF012 (a named tuple; nobody adds to it)
    close: bool = False
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (the same)

    @property
    def target(self) -> Any:
        return next(overloads(self.op)) if isinstance(self.op, str) else self.op


M = T((4, 4, 6))
IMAGES, HALF = T((4, 4, 6, 6)), T((4, 4, 3, 3))
POOL = ([2, 2], [2, 2], [0, 0])
ATT = T((4, 4, 8, 8), "real")
FIRST, OUTER, ALL = {(0, 0), (0, 1)}, {(0, 0), (0, 2)}, {(0, 0), (0, 1), (0, 2)}
PAIR, NOT_CHANNELS = {(0, 0), (0, 1), (1, 0), (1, 1)}, {(0, 0), (0, 2), (0, 3)}
THREE = PAIR | {(2, 0), (2, 1)}
C, V = T((4,)), T((4,), "positive")
CASES = {
    "add": Case("add.Tensor", (M, T((4, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}),
    "mul, broadcast": Case("mul.Tensor", (M, T((4, 1, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)}),
    "where": Case("where.self", (T((4, 6), "mask"), T((4, 6)), T((1, 6))), {(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)}),
    "to another type": Case(torch.ops.prims.convert_element_type.default, (M, torch.float32), ALL),
    "view, split": Case("view", (T((8, 6)), [2, 4, 6]), FIRST),
    "view, joined": Case("view", (M, [16, 6]), ALL),
    "view, all": Case("view", (M, [-1]), ALL),
    "view, a dimension of 1": Case("view", (M, [4, 1, 24]), ALL),
    **{op: Case(op, (M, [4, 24]), ALL) for op in ("_unsafe_view", "reshape")},
    "expand": Case("expand", (T((4, 1, 6)), [2, 4, 8, 6]), OUTER),
    "expand, -1": Case("expand", (T((4, 1, 6)), [-1, 4, -1]), OUTER),
    "permute": Case("permute", (M, [2, 0, -2]), ALL),
    "transpose": Case("transpose.int", (M, 0, -1), ALL),
    "t": Case("t", (T((4, 6)),), FIRST),
    "unsqueeze": Case("unsqueeze", (M, 1), ALL),
    "unsqueeze, behind": Case("unsqueeze", (M, -1), ALL),
    "squeeze": Case("squeeze.dim", (T((4, 1, 6)), 1), OUTER),
    "squeeze, nothing": Case("squeeze.dim", (M, 0), ALL),
    "squeeze.dims": Case("squeeze.dims", (T((1, 4, 1, 6)), [0, 2]), {(0, 1), (0, 3)}),
    **{op: Case(op, (M,), ALL) for op in ("alias", "detach", "_to_copy", "zeros_like", "ones_like")},
    "view_as_complex": Case("view_as_complex", (T((4, 6, 2)),), FIRST),
    "view_as_real": Case("view_as_real", (T((4, 6), "complex"),), FIRST),
    "slice": Case("slice.Tensor", (M, 1, 1, 3), OUTER),
    "slice, all": Case("slice.Tensor", (M, 1), ALL),
    "select": Case("select.int", (M, 1, 2), OUTER),
    "split": Case("split.Tensor", (T((8, 4)), 4, 0), {(0, 1)}),
    "split, the last one smaller": Case("split.Tensor", (T((6, 4)), 4, 0), {(0, 1)}),
    "split_with_sizes": Case("split_with_sizes", (T((12, 4)), [4, 8], 0), {(0, 1)}),
    "unbind": Case("unbind.int", (M, 1), OUTER),
    "stack": Case("stack", ([T((4, 6)), T((4, 6))], -1), PAIR),
    "stack, in front": Case("stack", ([T((4, 6)), T((4, 6))],), PAIR),
    "cat": Case("cat", ([T((4, 4)), T((4, 6))], 1), {(0, 0), (1, 0)}),
    "mm": Case("mm", (T((4, 6)), T((6, 8))), {(0, 0), (1, 1)}, {(0, 1), (1, 0)}),
    "bmm": Case("bmm", (T((2, 4, 6)), T((2, 6, 8))), {(0, 0), (0, 1), (1, 0), (1, 2)}, {(0, 2), (1, 1)}),
    "addmm": Case("addmm", (T((8,)), T((4, 6)), T((6, 8))), {(1, 0), (2, 1)}),
    "addmm, a matrix": Case("addmm", (T((4, 8)), T((4, 6)), T((6, 8))), {(1, 0), (2, 1)}),
    "sum": Case("sum.dim_IntList", (M, [1], True), OUTER, {(0, 1)}),
    "sum, smaller": Case("sum.dim_IntList", (M, [0, -1]), {(0, 1)}, OUTER),
    "mean": Case("mean.dim", (M, [-1], True), FIRST),
    "mean, smaller": Case("mean.dim", (M, [0]), {(0, 1), (0, 2)}),
    **{op: Case(op, (M, [1]), OUTER) for op in ("amax", "amin")},
    "logsumexp": Case("logsumexp", (M, [1]), OUTER, close=True),
    **{op: Case(op, (M, [2]), FIRST, close=True) for op in ("var.correction", "var_mean.correction")},
    "softmax": Case("_softmax", (M, -1, False), FIRST, close=True),
    "log_softmax": Case("_log_softmax", (M, 1, False), OUTER, close=True),
    **{
        f"{op} backward": Case(f"{op}_backward_data", (M, M, 2, torch.float64), PAIR, close=True)
        for op in ("_softmax", "_log_softmax")
    },
    "cumsum": Case("cumsum", (M, 1), OUTER),
    "topk": Case("topk", (T((4, 4, 6), "real"), 2), FIRST),
    "sort": Case("sort", (T((4, 4, 6), "real"),), FIRST),
    "layer norm": Case("native_layer_norm", (M, [6], T((6,)), T((6,)), 1e-5), FIRST, close=True),
    "layer norm backward": Case(
        "native_layer_norm_backward",
        (M, M, [6], T((4, 4, 1)), T((4, 4, 1)), T((6,)), T((6,)), [True, True, True]),
        PAIR,
        close=True,
    ),
    "embedding": Case("embedding", (T((10, 6)), T((4, 4), "below10")), {(1, 0), (1, 1)}),
    "embedding backward": Case("embedding_dense_backward", (M, T((4, 4), "below10"), 10, -1, False), set(), PAIR),
    "index": Case("index.Tensor", (T((10, 6)), [T((4, 4), "below10")]), {(1, 0), (1, 1)}),
    "index_put": Case("index_put", (M, [T((4, 4), "mask")], T(())), FIRST),
    "convolution": Case(
        "convolution", (T((4, 2, 6, 6)), T((3, 2, 3, 3)), T((3,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {(0, 0)}
    ),
    "convolution backward": Case(
        "convolution_backward",
        (
            *(T((4, 3, 6, 6)), T((4, 2, 6, 6)), T((3, 2, 3, 3)), [3]),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
        ),
        {(0, 0)},
    ),
    "max_pool2d": Case("max_pool2d_with_indices", (T((4, 2, 6, 6), "real"), [2, 2]), FIRST),
    "max_pool2d backward": Case(
        "max_pool2d_with_indices_backward",
        (HALF, IMAGES, *POOL, [1, 1], False, T((4, 4, 3, 3), "below36")),
        {(0, 0), (0, 1), (2, 0), (2, 1)},
    ),
    "avg_pool2d backward": Case("avg_pool2d_backward", (HALF, IMAGES, *POOL, False, True, None), FIRST, close=True),
    "adaptive_avg_pool2d backward": Case("_adaptive_avg_pool2d_backward", (HALF, IMAGES), FIRST),
    "upsample": Case("upsample_nearest2d", (HALF, [6, 6]), FIRST),
    "upsample.vec": Case("upsample_nearest2d.vec", (HALF, None, [2.0, 2.0]), FIRST),
    "upsample backward": Case("upsample_nearest2d_backward", (IMAGES, [6, 6], [4, 4, 3, 3]), FIRST),
    "bilinear": Case("upsample_bilinear2d", (HALF, [6, 6], False), FIRST, close=True),
    "bilinear.vec": Case("upsample_bilinear2d.vec", (HALF, None, True, [2.0, 2.0]), FIRST, close=True),
    "bilinear backward": Case("upsample_bilinear2d_backward", (IMAGES, [6, 6], [4, 4, 3, 3], False), FIRST, close=True),
    "pixel_shuffle": Case("pixel_shuffle", (HALF, 2), {(0, 0)}),
    "pad": Case("constant_pad_nd", (M, [1, 1], 2.0), FIRST),
    "pad, the first dimension": Case("constant_pad_nd", (M, [0, 0, 0, 0, 1, 0]), {(0, 1), (0, 2)}),
    "group norm": Case("native_group_norm", (IMAGES, C, C, 4, 4, 36, 2, 1e-5), {(0, 0)}, close=True),
    "group norm backward": Case(
        "native_group_norm_backward",
        (IMAGES, IMAGES, T((4, 2)), T((4, 2), "positive"), C, 4, 4, 36, 2, [True, True, True]),
        {(0, 0), (1, 0)},
        close=True,
    ),
    "batch norm, not in training": Case(
        "_native_batch_norm_legit_no_training", (IMAGES, C, C, C, V, 0.1, 1e-5), NOT_CHANNELS, close=True
    ),
    **{
        op: Case(op, (IMAGES, C, C, C, V, False, 0.1, 1e-5), NOT_CHANNELS, close=True)
        for op in ("native_batch_norm", "_native_batch_norm_legit_functional")
    },
    "batch norm backward": Case(
        "native_batch_norm_backward",
        (IMAGES, IMAGES, C, C, V, None, None, False, 1e-5, [True, True, True]),
        {(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)},
        close=True,
    ),
    "batch norm in training": Case("native_batch_norm", (IMAGES, C, C, None, None, True, 0.1, 1e-5), set()),
    "batch norm backward in training": Case(
        "native_batch_norm_backward", (IMAGES, IMAGES, C, None, None, C, C, True, 1e-5, [True, True, True]), set()
    ),
    "sum of all": Case("sum", (M,), set(), ALL),
    **{op: Case(op, (T((4, 4, 6), "real"), 1), OUTER) for op in ("max.dim", "min.dim")},
    "gather": Case("gather", (T((4, 6, 8)), 1, T((4, 3, 8), "below6")), {(0, 0), (0, 2), (1, 0), (1, 2)}),
    "gather, fewer": Case("gather", (T((4, 6, 8)), 1, T((4, 3, 4), "below6")), {(0, 0), (1, 0)}),
    "full_like": Case("full_like", (M, 3.0), ALL),
    **{op: Case(op, (M, [3]), ALL) for op in ("new_empty", "new_zeros", "new_ones")},
    "new_zeros, a row for each": Case("new_zeros", (M, [4, 4, 3]), ALL),
    "conj": Case("_conj", (T((4, 6), "complex"),), FIRST),
    "sort, stable": Case("sort.stable", (T((4, 4, 6), "real"),), FIRST, kwargs={"stable": True}),
    **{op: Case(op, (M, 2, T((4, 4, 2), "below6"), 1.0), PAIR) for op in ("scatter.value", "scatter_.value")},
    "scatter of a tensor": Case("scatter.src", (M, 2, T((4, 4, 1), "below6"), T((4, 4, 3))), THREE),
    "scatter_add": Case("scatter_add", (M, 2, T((4, 4, 2), "below6"), T((4, 4, 3))), THREE),
    "add_": Case("add_.Tensor", (M, T((4, 6))), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}),
    "new_full": Case("new_full", (M, [3], 2.0), ALL),
    "slice backward": Case("slice_backward", (M, [4, 9, 6], 1, 2, 6, 1), OUTER),
    "select backward": Case("select_backward", (M, [4, 3, 4, 6], 1, 2), ALL),
    "likelihood": Case("nll_loss_forward", (T((4, 6)), T((4,), "below6"), None, 2, -100), {(0, 0), (1, 0)}),
    "likelihood of each": Case("nll_loss_forward", (T((4, 6)), T((4,), "below6"), None, 0, -100), {(0, 0), (1, 0)}),
    "likelihood, mean": Case("nll_loss_forward", (T((4, 6)), T((4,), "below6"), None, 1, -100), set()),
    "likelihood backward": Case(
        "nll_loss_backward", (T(()), T((4, 6)), T((4,), "below6"), None, 2, -100, T(())), {(1, 0), (2, 0)}
    ),
    "likelihood backward of each": Case(
        "nll_loss_backward", (C, T((4, 6)), T((4,), "below6"), None, 0, -100, T(())), {(0, 0), (1, 0), (2, 0)}
    ),
    "likelihood backward, mean": Case(
        "nll_loss_backward", (T(()), T((4, 6)), T((4,), "below6"), None, 1, -100, T(())), set()
    ),
    "squares": Case("mse_loss", (M, M, 2), set(), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}),
    "squares, mean": Case("mse_loss", (M, M, 1), set()),
    "squares backward": Case("mse_loss_backward", (T(()), M, M, 2), {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}),
    "squares backward of each": Case(
        "mse_loss_backward", (M, M, M, 0), {(at, dim) for at in range(3) for dim in range(3)}
    ),
    "squares backward, mean": Case("mse_loss_backward", (T(()), M, M, 1), set()),
    "avg_pool2d": Case("avg_pool2d", (T((4, 2, 6, 6)), [2, 2]), FIRST),
    "adaptive_avg_pool2d": Case("_adaptive_avg_pool2d", (T((4, 2, 6, 6)), [3, 3]), FIRST),
    "attention": Case("_scaled_dot_product_flash_attention_for_cpu", (ATT, ATT, ATT, 0.0, True), THREE, close=True),
    "attention with fewer heads of keys": Case(
        "_scaled_dot_product_flash_attention_for_cpu",
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
        made = zip(*(results(case.target(*args, **kwargs)) for args, kwargs in calls), strict=True)
        for k, (given, want, ones) in enumerate(zip(results(said.gives), results(whole), made, strict=True)):
            if isinstance(want, Tensor) and given is not Uncut.SAME:
                got = put_together(ones, given, parts)
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
    others = ("aten._scaled_dot_product_", "aten._fused_rms_norm", "_c10d_functional.")
    assert all(target in proved or str(target).startswith(others) for target in RULES)
