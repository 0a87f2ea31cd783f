"""Figures read from a trace, on traces drawn by hand.

``scripts/train.py --trace``: fresh traces of gloo ranks, matched against the graphs of the same run.
"""

import json
from pathlib import Path

import pytest

from llama_repro.training.measure import (
    Graph,
    Profiled,
    exposed_on_gpu,
    matmuls_in_between,
    read_trace,
    with_least_memory,
)
from overlap_sched.cost.profile import read_traces
from overlap_sched.dump import load_dump
from overlap_sched.fx import lift
from overlap_sched.fx.profile import lifted_with_profile
from tests.training.test_two_ranks import SCHEDULED, SCRIPT, common, torchrun


def span(name, ts, dur, cat="cpu_op", tid=1):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "tid": tid}


def memory(ts, total, change, device=0, address=0, tid=1):
    args = {"Total Allocated": total, "Bytes": change, "Device Type": device, "Addr": address}
    return {"ph": "i", "name": "[memory]", "ts": ts, "args": args, "tid": tid}


def test_a_step_on_a_cpu():
    c10d = "_c10d_functional::"
    events = [
        span("## Call CompiledFxGraph f ##", 0, 100),
        span(c10d + "all_gather_into_tensor", 1, 5),
        span(c10d + "all_gather_into_tensor_out", 2, 2),  # called by the one before: no launch of its own
        memory(3, 100, 100),
        span("aten::mm", 10, 10),
        span(c10d + "reduce_scatter_tensor", 21, 1),
        span("aten::mm", 30, 10),
        span(c10d + "wait_tensor", 41, 7),
        span("aten::mm", 50, 10),
        span("aten::mm", 52, 10, tid=2),  # of another thread
        memory(60, 350, 250),
        span(c10d + "wait_tensor", 70, 4),
        memory(71, 50, -300),
        span("CompiledFunctionBackward", 200, 100),
        span("## Call CompiledFxGraph b ##", 210, 50),
        memory(220, 0, -50),
        memory(230, 30, 30),
        memory(231, 9000, 9000, device=1),
    ]
    programs = {"LMLMWMW": 1 + 2 + 1, "MLWM": 0, "LLMWW": 2, "WMLM": 1}  # a wait for what another graph has launched
    assert {program: matmuls_in_between(program) for program in programs} == programs
    step = read_trace(reversed(events), "cpu")
    forward, backward = step.graphs
    assert (forward.kind, forward.collectives, forward.program) == ("forward", 2, "LMLMWMW")
    assert (forward.growth_bytes, forward.with_copies_bytes, forward.exposed_us) == (350, 350, 11)
    assert (backward.kind, backward.growth_bytes, backward.program, backward.exposed_us) == ("backward", 0, "", 0)
    assert (step.growth_bytes, step.exposed_us) == (350, 11)


def test_copies_of_the_process_group_are_told_apart():
    events = [
        span("## Call CompiledFxGraph f ##", 0, 100),
        memory(1, 110, 10, address=1),
        span("_c10d_functional::reduce_scatter_tensor", 10, 10),
        memory(11, 115, 5, address=2),  # its output
        span("c10d::reduce_scatter_tensor_coalesced_", 12, 5),
        memory(13, 135, 20, address=3),  # a copy of its input
        memory(21, 175, 40, address=4, tid=2),  # of gloo's thread
        memory(22, 205, 30, address=5),
        memory(30, 165, -40, address=4),
        memory(31, 145, -20, address=3),
        memory(32, 146, 1, address=3),  # the address serves again
        memory(33, 145, -1, address=3),
    ]
    (graph,) = read_trace(events, "cpu").graphs
    assert (graph.growth_bytes, graph.with_copies_bytes) == (46, 105)


def test_on_a_gpu_only_communication_without_compute_is_exposed():
    kernels = [
        span("ncclDevKernel_AllGather", 0, 10, "kernel"),
        span("gemm", 4, 2, "kernel", tid=7),
        span("Memcpy DtoD", 8, 4, "gpu_memcpy", tid=7),
        span("ncclDevKernel_ReduceScatter", 9, 11, "kernel"),
        span("aten::mm", 0, 100),
    ]
    assert exposed_on_gpu(kernels) == 4 + 2 + 8
    assert read_trace(kernels, "cuda").exposed_us == 14


def test_the_least_memory_counts_and_the_times_of_the_first():
    def step(exposed_us, growth, *graphs):
        return Profiled(tuple(Graph("forward", *two, exposed_us, 1, 1, "LMW") for two in graphs), growth, exposed_us)

    settled = [step(9.0, 700, (50, 90), (80, 80)), step(8.0, 600, (60, 70), (30, 40))]  # growth, with copies
    assert with_least_memory(step(1.0, 10, (1, 1), (2, 2)), settled) == step(1.0, 600, (50, 90), (30, 40))


@pytest.mark.nightly
@pytest.mark.slow
def test_fresh_traces_of_two_ranks(tmp_path: Path) -> None:
    """What ran is in our order, the graph that is written in its own: harder than without us."""
    folder, out = tmp_path / "traces", tmp_path / "out.json"
    how = (*common("fsdp", "bf16", 2), *SCHEDULED, "--steps", "2")
    torchrun(SCRIPT, *how, "--trace", str(folder), "--json", str(out))
    assert len(json.loads(out.read_text())["losses"]) == 2  # those traced are not among them
    traces = read_traces([folder / "rank0.json.gz", folder / "rank1.json.gz"])
    assert [len(trace.steps) for trace in traces] == [3, 3]

    for name, collectives in (("graph-0.py", 21), ("graph-1.py", 41)):
        profile = lifted_with_profile(lift(load_dump(folder / name).gm), traces)[1]
        assert profile.runs == 3 * 2
        assert profile.share() > 0.98
        by_order = [node for node, m in zip(profile.sought, profile.measured, strict=True) if m and m.how == "order"]
        assert sum(node.collective for node in by_order) == collectives
        assert profile.share("shapes") == 0.0
        assert profile.fused_us > 0.0
        assert profile.skew_us is not None
