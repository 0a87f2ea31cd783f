"""The roofline: the formulas written out by hand."""

import subprocess
import sys

import pytest

from overlap_sched import cost
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Group


# of real graphs: (op, flops, bytes, us)
@pytest.mark.parametrize(
    ("op", "flops", "nbytes", "us"),
    [
        ("aten.mm.default", 3435973836800, 2130706432, 5784.468),  # bound by arithmetic
        ("aten.bmm.default", 201326592, 469958656, 175.358),  # bound by memory
        ("aten.full.default", 0, 4, 2.0),  # bound by the launch
        ("aten.view.default", 0, 0, 0.0),  # free
        ("aten._scaled_dot_product_cudnn_attention.default", 274877906944, 67371024, 462.757),
    ],
)
def test_compute(op: str, flops: int, nbytes: int, us: float) -> None:
    assert round(cost.Roofline().compute_us(cost.Compute(op, flops, nbytes)), 3) == us


@pytest.mark.parametrize(
    ("op", "nbytes", "group", "us"),
    [
        ("all_gather_into_tensor", 419430400, Group(64, False), 2323.76),
        ("reduce_scatter_tensor", 838860800, Group(64, False), 4617.52),
        ("all_to_all_single", 201326592, Group(8, True), 488.11),
        ("all_gather_into_tensor", 131334144, Group(8, False), 668.43),
        ("all_reduce", 370000, Group(2, True), 13.0),  # 12 + 2 * 370000 / 2 / 370e9
        ("all_reduce_", 370000, Group(2, True), 13.0),
        ("all_reduce_coalesced", 370000, Group(2, True), 13.0),
        ("broadcast", 370000, Group(2, True), 12.5),
        ("all_gather_into_tensor", 10**9, Group(1, True), 12.0),  # alone: latency only
    ],
)
def test_collective(op: str, nbytes: int, group: Group, us: float) -> None:
    assert round(cost.Roofline().collective_us(cost.Collective(op, nbytes, group)), 3) == us


def test_rates_of_the_default_device() -> None:
    assert cost.H100.flops_per_s == 594e12
    assert cost.H100.bytes_per_s == 2.68e12


def test_another_device_changes_only_compute() -> None:
    h100, a100 = cost.Roofline(), cost.Roofline(cost.A100)
    matmul = cost.Compute("aten.mm.default", 10**12, 10**6)
    gather = cost.Collective("all_gather_into_tensor", 10**9, Group(8, True))
    assert a100.compute_us(matmul) / h100.compute_us(matmul) == pytest.approx(990 / 312)
    assert a100.collective_us(gather) == h100.collective_us(gather)


def test_devices_are_found_by_name() -> None:
    assert [cost.device_named(device.name) for device in cost.DEVICES] == list(cost.DEVICES)
    assert cost.device_named("h200") is cost.H200
    assert cost.device_named("CPU") is cost.XEON_8480
    with pytest.raises(OptionsError) as error:
        cost.device_named("H300")
    assert str(error.value) == (
        "no device is named 'H300'; known are H100, H200, A100, RTX-3090, RTX-3090-TF32, Xeon-8480+ and cpu. "
        "Or make your own: cost.Device(...)."
    )


def test_cost_never_imports_torch() -> None:
    code = "import sys, overlap_sched.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
