"""Functional all_gathers over gloo go through the ``_out`` variant while we say so, and through torch's own else."""

import pytest
import torch
import torch.distributed as dist

from llama_repro.training.world import world_of
from overlap_sched.inductor.gloo import safe_gathers
from tests.inductor.models import routed
from tests.training.test_two_ranks import ROOT, torchrun

FUNCTIONAL = torch.ops._c10d_functional


def operators_of(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    return {event.name for event in profiler.events()}


@pytest.mark.filterwarnings(
    "ignore::UserWarning:torch.library", "ignore:Warning only once for all operators:UserWarning"
)
def test_it_is_on_only_inside_and_gathers_the_same(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    x = torch.arange(6.0).reshape(2, 3)
    with world_of("cpu"):
        group = dist.group.WORLD.group_name

        def gather():
            assert torch.equal(FUNCTIONAL.wait_tensor(FUNCTIONAL.all_gather_into_tensor(x, 1, group)), x)

        out = "_c10d_functional::all_gather_into_tensor_out"
        assert out not in operators_of(gather)
        with safe_gathers(), safe_gathers():
            assert routed()
            assert out in operators_of(gather)
        assert not routed()
        assert out not in operators_of(gather)


@pytest.mark.slow
def test_many_in_flight_are_clean():
    done = torchrun(ROOT / "tests/training/gather_rounds.py", "safe", timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
