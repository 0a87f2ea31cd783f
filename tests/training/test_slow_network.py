"""A slow network by a clock of the test's own: when a collective ends, and who is kept waiting.

Functional all_gathers over gloo go through the ``_out`` variant while we say so, and through torch's own else.
"""

import pytest
import torch
import torch.distributed as dist

from llama_repro.training.slow_network import Traffic, slow_network
from llama_repro.training.world import world_of
from overlap_sched.cost import Collective
from overlap_sched.inductor.gloo import safe_gathers
from tests.support.inductor.models import routed, unroute
from tests.support.ranks import run_ranks

FUNCTIONAL = torch.ops._c10d_functional


class Time:
    """Seconds that pass only in ``sleep`` and by hand."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(pytest.approx(seconds))
        self.now += seconds


class ByBytes:
    """A microsecond per byte."""

    def collective_us(self, work: Collective) -> float:
        assert work.op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
        return float(work.bytes)


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with world_of("cpu"):
        yield dist.group.WORLD.group_name


def test_a_wait_sleeps_until_the_link_has_sent_everything_before_it(alone):
    time = Time()
    x = torch.arange(25.0)
    with slow_network(ByBytes(), time.clock, time.sleep) as traffic:
        first = FUNCTIONAL.all_gather_into_tensor(x, 1, alone)  # 100 us, until 100
        second = FUNCTIONAL.reduce_scatter_tensor(x, "sum", 1, alone)  # 100 us, behind the first: until 200
        time.now += 60e-6  # compute hides that much
        assert torch.equal(FUNCTIONAL.wait_tensor(first), x)
        assert torch.equal(FUNCTIONAL.wait_tensor(second), x)
        assert time.slept == [40e-6, 100e-6]
        assert traffic.taken() == (200.0, pytest.approx(140.0), pytest.approx(140.0))
        traffic.settle_s = 7.0
        FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(x, "sum", alone))
        assert time.slept.pop() == 100e-6 + 7.0
        traffic.settle_s = 0.0
        assert traffic.taken() == (100.0, pytest.approx(100.0), pytest.approx(7e6 + 100))
        third = FUNCTIONAL.all_reduce(x, "sum", alone)
        time.now += 1.0
        FUNCTIONAL.wait_tensor(third)  # has long arrived
        FUNCTIONAL.wait_tensor(third)  # is no longer on its way
        assert traffic.taken() == (100.0, 0.0, pytest.approx(0.0))
    assert len(time.slept) == 2
    assert torch.equal(FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(x, "sum", alone)), x)  # off: nobody is slowed down
    assert traffic.taken() == (0.0, 0.0, 0.0)


def test_groups_do_not_wait_for_each_other():
    traffic = Traffic()
    one, other = torch.zeros(1), torch.zeros(1)
    traffic.launched(one, "fsdp", 1e6, now=0.0)
    traffic.launched(other, "tp", 3e6, now=1.0)
    assert traffic.left_s(other, now=2.0) == pytest.approx(2.0)
    assert traffic.left_s(one, now=2.0) == 0.0


@pytest.mark.filterwarnings(
    "ignore::UserWarning:torch.library", "ignore:Warning only once for all operators:UserWarning"
)
def test_it_is_on_only_inside_and_gathers_the_same(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    unroute()
    x = torch.arange(6.0).reshape(2, 3)
    with world_of("cpu"):
        group = dist.group.WORLD.group_name

        def by_out():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                assert torch.equal(FUNCTIONAL.wait_tensor(FUNCTIONAL.all_gather_into_tensor(x, 1, group)), x)
            return "_c10d_functional::all_gather_into_tensor_out" in {event.name for event in profiler.events()}

        assert not by_out()
        with safe_gathers(), safe_gathers():
            assert routed()
            assert by_out()
        assert not routed()
        assert not by_out()


@pytest.mark.slow
def test_many_in_flight_are_clean():
    run_ranks("tests.support.gather_rounds", "safe", ranks=2, limit_s=120)
