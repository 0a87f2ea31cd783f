"""Figures read from a trace, on traces drawn by hand."""

from llama_repro.training.measure import exposed_on_gpu, read_trace


def span(name, ts, dur, cat="cpu_op", tid=1):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "tid": tid}


def memory(ts, total, change, device=0):
    args = {"Total Allocated": total, "Bytes": change, "Device Type": device}
    return {"ph": "i", "name": "[memory]", "ts": ts, "args": args}


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
    step = read_trace(reversed(events), "cpu")
    forward, backward = step.graphs
    assert (forward.kind, forward.collectives, forward.matmuls_in_between) == ("forward", 2, 1 + 2 + 1)
    assert (forward.growth_bytes, forward.exposed_us) == (350, 11)
    assert (backward.kind, backward.growth_bytes, backward.exposed_us) == ("backward", 0, 0)
    assert (step.growth_bytes, step.exposed_us) == (350, 11)


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


def test_a_step_without_graphs():
    step = read_trace([], "cpu")
    assert (step.graphs, step.growth_bytes, step.exposed_us) == ((), 0, 0)
