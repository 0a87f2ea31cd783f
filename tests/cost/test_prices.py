"""Prices, the roofline, and steps that are too long or too short."""

import pytest

from overlap_sched import cost
from overlap_sched.cost import FREE, Collective, Compute, Device, Roofline
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
    with pytest.raises(OptionsError, match=r"'H300'; known are H100, H200, A100, .*Device"):
        cost.device_named("H300")


@pytest.mark.parametrize(
    ("us", "found"),
    [(3600e6, None), (1.0, None), (0.0, None), (7.2e9, "2.0 hours"), (0.25, "250 ns"), (0.999, "999 ns")],
)
def test_steps_of_odd_lengths_are_asked_about(us: float, found: str | None) -> None:
    said = question_step(Problem("alone", (Node("mm", Kind.COMPUTE, time_us=us),), ()))
    assert (said is None) == (found is None)
    assert found is None or f"takes {found}:" in str(said)
