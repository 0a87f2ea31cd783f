"""Prices with more time for each kernel."""

from llama_repro.workloads.ramp import Ramped
from overlap_sched.cost import Collective, Compute, Roofline
from overlap_sched.problem import Group


def test_what_runs_takes_longer_and_what_does_not_takes_nothing() -> None:
    roofline = Roofline()
    ramped = Ramped(roofline, 20.0)
    assert ramped.compute_us(Compute("aten.view", 0, 0)) == 0.0
    product = Compute("aten.mm", 10**12, 10**6)
    assert ramped.compute_us(product) == roofline.compute_us(product) + 20.0
    gather = Collective("all_gather", 10**6, Group(8, True))
    assert ramped.collective_us(gather) == roofline.collective_us(gather)
