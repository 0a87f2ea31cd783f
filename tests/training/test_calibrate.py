"""What is measured of a machine, and what the model makes of it."""

import pytest
import torch

from llama_repro.training import calibrate
from llama_repro.training.calibrate import device_of, measured_model
from llama_repro.training.slow_network import with_slow_links
from llama_repro.training.world import world_of
from overlap_sched.cost import H100, Collective, Compute, Roofline
from overlap_sched.cost.table import CollectiveTime, KernelTime, TableModel, Tables
from overlap_sched.distributed.calibration import Grid
from overlap_sched.problem import Group

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIR = Group(2, True)


def test_the_slow_network_is_one_for_all_operators():
    gathers = (CollectiveTime("all_gather", 2, 1, 10**6, 5.0, 1.0),)
    model = TableModel(Tables(gathers, (KernelTime("slow", "", 10**9, 0, 1000.0),)), on_host=True)
    slow = with_slow_links(model, 1e9)
    for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "other"):
        assert slow.collective_us(Collective(op, 2 * 10**6, PAIR)) == pytest.approx(1300.0)
        assert slow.launch_us(Collective(op, 2 * 10**6, PAIR)) == 0.0
    assert slow.compute_us(Compute("slow", 10**9, 0)) == 1000.0
    across = Collective("all_gather_into_tensor", 2 * 10**6, Group(2, False))
    assert with_slow_links(Roofline(), 1e9).collective_us(across) == pytest.approx(1300.0)
    assert with_slow_links(Roofline(), 1e9, 20_000.0).collective_us(across) == pytest.approx(21_000.0)


def test_the_rates_of_a_model():
    assert device_of(Roofline()) is device_of(TableModel(Tables())) is H100


@pytest.mark.slow
def test_a_rank_alone_measures_compute(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(calibrate, "_GRID", Grid(((64, 64, 64), (256, 256, 256)), ((1, 4, 64, 32),), (2**12, 2**20)))
    with world_of("cpu") as world:
        model = measured_model(world, torch.bfloat16)
    ops = {one.op for one in model.tables.kernels}
    assert {"aten.mm.default", "aten.clone.default", f"{ATTENTION}.default", f"{ATTENTION}_backward.default"} == ops
    assert model.tables.collectives == ()
    assert all(one.time_us > 0 for one in model.tables.kernels)
    device = device_of(model)
    assert all(1e6 < rate < 1e16 for rate in (device.flops_per_s, device.bytes_per_s))  # in units of one per second
    assert model.on_host
