"""Functional all_gathers over gloo go through the ``_out`` variant while we say so, and through torch's own else."""

import pytest
import torch
import torch.distributed as dist

from llama_repro.training.measure import profiled
from llama_repro.training.slow_network import NoLink, slow_network
from llama_repro.training.world import world_of
from overlap_sched.inductor.gloo import safe_gathers
from tests.support.inductor.models import routed, unroute
from tests.support.ranks import run_ranks

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
    unroute()
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


@pytest.mark.parametrize("collective", ["reduce_scatter_tensor", "all_gather_into_tensor"])
def test_gloo_holds_a_copy(collective, monkeypatch):
    """What it allocates beside the output; when this fails, what is said of measured memory is no longer so."""
    monkeypatch.delenv("RANK", raising=False)
    x = torch.ones(2**18)
    arguments = ("sum",) if collective == "reduce_scatter_tensor" else ()

    def step():
        with torch.profiler.record_function("## Call CompiledFxGraph of one collective ##"):
            group = dist.group.WORLD.group_name
            FUNCTIONAL.wait_tensor(getattr(FUNCTIONAL, collective)(x, *arguments, 1, group))

    with world_of("cpu"), slow_network(NoLink()) as waits:
        (graph,) = profiled(step, torch.device("cpu"), waits).graphs
    assert graph.program == "LW"
    assert graph.growth_bytes == x.nbytes
    assert graph.with_copies_bytes == 2 * x.nbytes


@pytest.mark.slow
def test_many_in_flight_are_clean():
    run_ranks("tests.support.gather_rounds", "safe", ranks=2, limit_s=120)
