"""What is measured of a machine, and what the model makes of it."""

import pytest
import torch

from llama_repro.training.calibrate import Measured, measured_roofline
from llama_repro.training.slow_network import with_slow_links
from llama_repro.training.world import world_of
from overlap_sched.cost import H100, Collective, Compute, Link, Network, Roofline
from overlap_sched.problem import Group

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIR = Group(2, True)


def test_operators_with_rates_of_their_own():
    network = Network(Link(10.0, 1e9), Link(10.0, 1e9))
    model = Measured(H100, network, (("slow", 1e12),), (("reduce_scatter_tensor", Link(50.0, 0.5e9)),))
    assert model.compute_us(Compute("slow", 4 * 10**9, 0)) == pytest.approx(4000.0)
    assert model.compute_us(Compute("slow", 1, 0)) == H100.kernel_us
    assert model.compute_us(Compute("other", 4 * 10**9, 0)) == Roofline().compute_us(Compute("other", 4 * 10**9, 0))
    assert model.collective_us(Collective("all_gather_into_tensor", 10**6, PAIR)) == pytest.approx(10.0 + 500.0)
    assert model.collective_us(Collective("reduce_scatter_tensor", 10**6, PAIR)) == pytest.approx(50.0 + 1000.0)


def test_the_slow_network_is_one_for_all_operators():
    model = Measured(H100, flops_per_s=(("slow", 1e12),), links=(("reduce_scatter_tensor", Link(1.0, 1e12)),))
    slow = with_slow_links(model, 1e9)
    assert {slow.collective_us(Collective(op, 2 * 10**6, PAIR)) for op in ("all_gather_into_tensor", "other")} == {
        1300.0
    }
    assert slow.collective_us(Collective("reduce_scatter_tensor", 2 * 10**6, PAIR)) == pytest.approx(1300.0)
    assert slow.compute_us(Compute("slow", 10**9, 0)) == pytest.approx(1000.0)
    across = Collective("all_gather_into_tensor", 2 * 10**6, Group(2, False))
    assert with_slow_links(Roofline(), 1e9).collective_us(across) == pytest.approx(1300.0)


def test_a_rank_alone_measures_compute(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with world_of("cpu") as world:
        model = measured_roofline(world, torch.bfloat16)
    assert isinstance(model, Measured)
    assert [op for op, _ in model.flops_per_s] == [f"{ATTENTION}.default", f"{ATTENTION}_backward.default"]
    rates = [rate for _, rate in model.flops_per_s] + [model.device.flops_per_s, model.device.bytes_per_s]
    assert all(1e6 < rate < 1e16 for rate in rates)  # in units of one per second
    assert model.links == ()
