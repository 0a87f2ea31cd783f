"""Prices say where a time comes from; the times are always those of ``compute_us`` and ``collective_us``."""

import pytest

from overlap_sched.cost import FREE, Collective, Compute, Device, ExplainingModel, Pricer, Roofline
from overlap_sched.cost.model import Price
from overlap_sched.problem import Group

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
    assert Pricer(model).compute(Compute("op", flops, nbytes)) == price
    assert model.compute_us(Compute("op", flops, nbytes)) == price.time_us


@pytest.mark.parametrize(("nbytes", "bound"), [(1000, "latency"), (10**9, "bandwidth")])
def test_what_bounds_a_collective(nbytes: int, bound: str) -> None:
    work = Collective("all_gather_into_tensor", nbytes, Group(8, True))
    price = Pricer(Roofline()).collective(work)
    assert price == Price(Roofline().collective_us(work), "roofline", bound)


def test_a_model_that_only_knows_times_is_the_users() -> None:
    assert not isinstance(Flat(), ExplainingModel)
    assert Pricer(Flat()).compute(Compute("op", 1, 1)) == Price(7.0, "user")
    assert Pricer(Flat()).collective(Collective("all_reduce", 1, Group(2, True))) == Price(70.0, "user")


def test_an_inherited_explanation_of_another_time_is_not_used() -> None:
    pricer = Pricer(Halved(SLOW))
    assert pricer.compute(Compute("mine", 10_000, 0)) == Price(1.0, "user")
    assert pricer.compute(Compute("other", 10_000, 0)) == Price(10.0, "roofline", "flops")
