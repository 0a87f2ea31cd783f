"""What a GPU takes for a program: times of single nodes, time of a step, and the allocator's peak.

Nodes are launched from Python, which for small ones is slower than the GPU runs them. So each timed run begins with a
kernel that spins for as long as launching all takes (the head start): what is timed is the GPU, as the prediction is.
"""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from llama_repro.gpu.program import Observe, Program
from llama_repro.gpu.streams import CudaStreams, OnLaunch, Streams
from llama_repro.gpu.values import live_bytes
from overlap_sched.problem import Kind

Inputs = Callable[[], list[Any]]
"""Makes the inputs of a program for each run, which gives them up."""

WARM_UPS = 2
_HEAD_START = 1.5
"""Head start, as a multiple of the time that launching took in a warm-up."""


class Run(NamedTuple):
    """One run, for its memory.

    Attributes:
        result: What the program returned.
        live_bytes: Most bytes behind its values at once, counted at every node.
        allocated_bytes: The allocator's peak of what it has handed out, above what was there before (``None`` on the
            CPU), with kernels' own workspaces and rounding.
        requested_bytes: The same without the allocator's rounding.
        reserved_bytes: Peak of what it has taken from the device, above what it held before.
    """

    result: Any
    live_bytes: int
    allocated_bytes: int | None = None
    requested_bytes: int | None = None
    reserved_bytes: int | None = None


def counted_run(program: Program, inputs: Inputs, streams: Streams) -> Run:
    """Run once and count live bytes, on any device."""
    peak = 0

    def observe(node: fx.Node, env: dict[fx.Node, Any]) -> None:
        nonlocal peak
        peak = max(peak, live_bytes(env.values()))

    result = program.run(inputs(), streams, observe)
    return Run(result, peak)


def memory_run(program: Program, inputs: Inputs, streams: CudaStreams) -> Run:
    """Run once on the GPU from an empty cache, and read the allocator's peaks."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, reserved_before = torch.cuda.memory_stats(), torch.cuda.memory_reserved()
    made = inputs()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = counted_run(program, lambda: made, streams)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()

    def above(kind: str) -> int:
        return int(after.get(f"{kind}_bytes.all.peak", 0) - before.get(f"{kind}_bytes.all.current", 0))

    reserved = torch.cuda.max_memory_reserved() - reserved_before
    return run._replace(allocated_bytes=above("allocated"), requested_bytes=above("requested"), reserved_bytes=reserved)


def gpu_runs(
    program: Program, inputs: Inputs, repeat: int, streams: Callable[[], CudaStreams], observe: Observe | None = None
) -> Iterator[tuple[Any, Any]]:
    """Run ``repeat`` times after warm-ups; yields events at the beginning, and where all streams are done.

    ``streams`` is called at the beginning of every run, warm-ups included.
    """
    head_us = 0.0
    for i in range(WARM_UPS + repeat):
        made, lanes = inputs(), streams()
        torch.cuda.synchronize()
        lanes.spin(head_us)
        began = time.perf_counter()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        program.run(made, lanes, observe)
        end.record()
        if i < WARM_UPS:
            head_us = max(head_us, _HEAD_START * (time.perf_counter() - began) * 1e6)
        end.synchronize()
        if i >= WARM_UPS:
            yield start, end


def elapsed_us(before: Any, after: Any) -> float:
    """Microseconds between two events that have happened."""
    return float(before.elapsed_time(after)) * 1e3


def node_times_us(
    program: Program, inputs: Inputs, repeat: int, streams: Callable[[OnLaunch], CudaStreams]
) -> dict[fx.Node, float]:
    """Microseconds of every compute node and collective, the median of several runs.

    A compute node takes from the end of the one before it to its own end; a collective what it takes on its stream.

    Args:
        program: The original order, in which next to nothing overlaps.
        inputs: Makes its inputs.
        repeat: How many runs.
        streams: Makes streams that call the function given at each launch.
    """
    kinds = {step.node: step.kind for step in program.steps}
    ends: list[tuple[fx.Node, Any]] = []
    spans: list[tuple[fx.Node, Any, Any]] = []

    def made() -> CudaStreams:
        ends.clear()
        spans.clear()
        return streams(lambda node, before, after: spans.append((node, before, after)))

    def observe(node: fx.Node, env: dict[fx.Node, Any]) -> None:
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        ends.append((node, end))

    found: defaultdict[fx.Node, list[float]] = defaultdict(list)
    for start, _ in gpu_runs(program, inputs, repeat, made, observe):
        compute = [(node, a, b) for a, (node, b) in zip([start, *(end for _, end in ends)], ends, strict=False)]
        for node, before, after in [*(span for span in compute if kinds[span[0]] is Kind.COMPUTE), *spans]:
            found[node].append(elapsed_us(before, after))
    return {node: statistics.median(times) for node, times in found.items()}
