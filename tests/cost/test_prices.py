"""Prices, the roofline, and steps that are too long or too short."""

import math

import pytest

from overlap_sched import cost
from overlap_sched.cost import FREE, H100, Collective, Compute, Device, Roofline
from overlap_sched.cost.compute import kind_of, shape_of
from overlap_sched.cost.model import Price, price_of
from overlap_sched.cost.plausible import question_step
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Group, Kind, Node, Problem

SLOW = Device("slow", peak_flops_per_s=1e9, peak_bytes_per_s=1e9, flops_efficiency=1, bytes_efficiency=1)


class Flat:
    """A user's model that knows times only."""

    def compute_us(self, work: Compute) -> float:
        return 7.0

    def collective_us(self, work: Collective) -> float:
        return 70.0


class Halved(Roofline):
    """A user's model that changes some times of ours: what it inherits explains the others."""

    def compute_us(self, work: Compute) -> float:
        return 1.0 if work.op == "mine" else super().compute_us(work)


@pytest.mark.parametrize(
    ("flops", "nbytes", "price"),
    [
        (10_000, 2_000, Price(10.0, "roofline", "flops")),
        (1_000, 5_000, Price(5.0, "roofline", "bytes")),
        (1_000, 1_500, Price(2.0, "roofline", "kernel")),
        (0, 0, FREE),
    ],
)
def test_what_bounds_compute(flops: int, nbytes: int, price: Price) -> None:
    model = Roofline(SLOW)
    assert price_of(model, Compute("op", flops, nbytes)) == price
    assert model.compute_us(Compute("op", flops, nbytes)) == price.time_us


@pytest.mark.parametrize(("nbytes", "bound"), [(1000, "latency"), (10**9, "bandwidth")])
def test_what_bounds_a_collective(nbytes: int, bound: str) -> None:
    work = Collective("all_gather_into_tensor", nbytes, Group(8, True))
    price = price_of(Roofline(), work)
    assert price == Price(Roofline().collective_us(work), "roofline", bound)


def test_a_model_that_only_knows_times_is_the_users() -> None:
    assert price_of(Flat(), Compute("op", 1, 1)) == Price(7.0, "user")
    assert price_of(Flat(), Collective("all_reduce", 1, Group(2, True))) == Price(70.0, "user")


def test_an_inherited_explanation_of_another_time_is_not_used() -> None:
    assert price_of(Halved(SLOW), Compute("mine", 10_000, 0)) == Price(1.0, "user")
    assert price_of(Halved(SLOW), Compute("other", 10_000, 0)) == Price(10.0, "roofline", "flops")


@pytest.mark.parametrize(
    ("op", "shapes", "us"),
    [  # kernels of public traces on H100: TL_h100__gaunernst_bert, facebook_timesformer, Qwen
        ("addmm", [[512], [141, 512], [512, 512]], 5.8),
        ("addmm", [[2048], [141, 512], [512, 2048]], 6.1),
        ("addmm", [[512], [141, 2048], [2048, 512]], 8.2),
        ("mm", [[8944, 1024], [1024, 1024]], 32.4),
        ("mm", [[8944, 2816], [2816, 1024]], 76.5),
        ("addmm", [[3072], [25089, 768], [768, 3072]], 164.8),
        ("addmm", [[30522], [141, 512], [512, 30522]], 41.3),  # rows that are not aligned
        ("native_layer_norm", [[1, 141, 512], [512], [512]], 3.1),
        ("native_layer_norm", [[8, 3137, 768], [768], [768]], 59.2),
        ("_softmax", [[3136, 12, 8, 8]], 7.7),
        ("_softmax", [[8, 12, 3137, 3137]], 5706.6),
        ("mean", [[16, 559, 1024]], 15.1),  # of four bytes, and writes little
        ("_flash_attention_forward", [[1, 141, 8, 64]] * 3, 9.1),
    ],
)
def test_kernels_take_what_was_measured(op: str, shapes: list[list[int]], us: float) -> None:
    op = f"aten.{op}.default"
    batch, m, n, k = shape = shape_of(op, shapes)
    moved = sum(map(math.prod, shapes)) + (batch * m * n if kind_of(op) == "gemm" else math.prod(shapes[0]))
    flops = {"gemm": 2, "attention": 4}.get(kind_of(op), 0) * batch * m * n * k
    assert 0.8 < Roofline().compute_us(Compute(op, flops, 2 * moved, shape=shape)) / us < 1.25


@pytest.mark.parametrize(
    ("name", "causal", "size", "published"),
    [  # TFLOPS at 512, 1k, ... rows (16k rows in all, 2,048 wide): FlashAttention-3, arXiv 2407.08608, figures 5 and 6
        ("flash_attention", False, 128, [309, 350, 362, 368, 370, 370]),
        ("flash_attention", True, 128, [191, 260, 298, 319, 333, 335]),
        ("flash_attention", False, 64, [282, 306, 318, 321, 322, 324]),
        ("cudnn_attention", False, 128, [497, 574, 617, 609, 600, 595]),
        ("flash_attention_backward", False, 128, [214, 260, 291, 310, 318, 322]),
        ("cudnn_attention_backward", False, 128, [305, 408, 465, 499, 518, 516]),
        ("flash_attention_backward", False, 64, [198, 238, 264]),
    ],
)
def test_attention_reaches_published_rates(name: str, causal: bool, size: int, published: list[int]) -> None:
    op = f"aten._scaled_dot_product_{name}.default"
    for k, rate in enumerate(published):
        rows, heads = 512 * 2**k, 2048 // size
        tensors = [[2**14 // rows, heads, rows, size]] * (4 if "backward" in name else 3)
        flops = (10 if "backward" in name else 4) * 2**14 * heads * rows * size
        work = Compute(op, flops, 1, "causal" if causal else None, shape_of(op, tensors))
        useful = flops / 2 if causal else flops
        assert useful / Roofline(H100._replace(kernel_us=0.0)).compute_us(work) / 1e6 == pytest.approx(rate, rel=0.15)


def test_kinds_are_told_by_operators() -> None:
    kinds = {
        "gemm": ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm_v2", "_int_mm"),
        "norm": ("native_layer_norm", "_fused_rms_norm_backward", "native_group_norm", "cudnn_batch_norm"),
        "softmax": ("_softmax", "_log_softmax_backward_data"),
        "reduction": ("sum", "mean", "amax", "linalg_vector_norm", "var_mean", "any"),
        "attention": ("_scaled_dot_product_cudnn_attention_backward", "_flash_attention_forward"),
        "convolution": ("convolution", "convolution_backward"),
        "other": ("add", "clone", "embedding", "cat", "max_pool2d_with_indices", "addcmul", "_foreach_norm"),
    }
    assert {
        kind: tuple(name for name in names if kind_of(f"aten.{name}.default") == kind) for kind, names in kinds.items()
    } == kinds
    assert kind_of("aten.sum.dim_IntList+aten.mul.Tensor") == "fused"
    assert kind_of("mean") == "reduction"


def test_what_a_compiler_makes_of_loops_is_priced_by_bytes() -> None:
    for op, kind in (("aten.sum.dim_IntList", "fused"), ("aten.mul.Tensor+aten.sum.dim_IntList", None)):
        assert Roofline(SLOW).compute_us(Compute(op, 0, 5_000, kind)) == 5.0
    strided_us = Roofline().compute_us(Compute("aten.clone.default", 0, 77_070_000, "strided"))
    assert strided_us == pytest.approx(55.0, rel=0.1)  # copies of TL_h100__facebook_timesformer: 51 to 59
    assert Roofline().compute_us(Compute("aten.clone.default", 0, 77_070_000)) < 0.6 * strided_us


@pytest.mark.parametrize(
    ("op", "nbytes", "group", "us"),
    [
        ("all_gather_into_tensor", 419430400, Group(64, False), 2323.76),
        ("reduce_scatter_tensor", 838860800, Group(64, False), 4617.52),
        ("all_to_all_single", 201326592, Group(8, True), 488.11),
        ("all_reduce", 370000, Group(2, True), 13.0),  # 12 + 2 * 370000 / 2 / 370e9
        ("broadcast", 370000, Group(2, True), 12.5),
        ("all_gather_into_tensor", 10**9, Group(1, True), 12.0),  # alone: latency only
    ],
)
def test_collective(op: str, nbytes: int, group: Group, us: float) -> None:
    assert round(cost.Roofline().collective_us(cost.Collective(op, nbytes, group)), 3) == us


def test_devices_are_found_by_name() -> None:
    assert [cost.device_named(device.name) for device in cost.DEVICES] == list(cost.DEVICES)
    assert cost.device_named("h200") is cost.H200
    assert cost.device_named("CPU") is cost.XEON_8480
    with pytest.raises(OptionsError, match=r"'H300'; known are H100, .*H200, .*A100, .*Device"):
        cost.device_named("H300")


@pytest.mark.parametrize(
    ("us", "found"),
    [(3600e6, None), (1.0, None), (0.0, None), (7.2e9, "2.0 hours"), (0.25, "250 ns"), (0.999, "999 ns")],
)
def test_steps_of_odd_lengths_are_asked_about(us: float, found: str | None) -> None:
    said = question_step(Problem("alone", (Node("mm", Kind.COMPUTE, time_us=us),), ()))
    assert (said is None) == (found is None)
    assert found is None or f"takes {found}:" in str(said)
