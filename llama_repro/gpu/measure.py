"""What a GPU takes for a program: times of single nodes, time of a step, and the allocator's peak.

Nodes are launched from Python, which for small ones is slower than the GPU runs them. So each timed run begins with a
kernel that spins for as long as launching all takes (the head start): what is timed is the GPU, as the prediction is.
"""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from llama_repro.gpu.program import Observe, Program, live_bytes
from llama_repro.gpu.streams import CudaStreams, OnLaunch, Streams
from overlap_sched.problem import Kind
from overlap_sched.problem.sizes import PLAIN, AllocatorSettings
from overlap_sched.simulate.allocator import CachingAllocator, new_allocator

Inputs = Callable[[], list[Any]]
"""Makes the inputs of a program for each run, which gives them up."""

WARM_UPS = 2
_HEAD_START = 1.5
"""Head start, as a multiple of the time that launching took in a warm-up."""


MOST_EVENTS = 1_000_000
"""So many requests of the allocator are recorded at most."""


class Run(NamedTuple):
    """One run, for its memory; ``None``: not measured on the CPU.

    Attributes:
        result: What the program returned.
        live_bytes: Most bytes behind its values at once, counted at every node.
        allocated_bytes: The allocator's peak of what it has handed out, above what was there before, with kernels' own
            workspaces and rounding.
        reserved_bytes: The most that it took from the device for the run, from an empty cache.
        replayed_bytes: What our replay of the allocator reserves for the same requests.
    """

    result: Any
    live_bytes: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    replayed_bytes: int | None = None


def counted_run(program: Program, inputs: Inputs, streams: Streams) -> Run:
    """Run once and count live bytes, on any device."""
    peak = 0

    def observe(node: fx.Node, env: dict[fx.Node, Any]) -> None:
        nonlocal peak
        peak = max(peak, live_bytes(env.values()))

    result = program.run(inputs(), streams, observe)
    return Run(result, peak)


def memory_run(program: Program, inputs: Inputs, streams: CudaStreams) -> Run:
    """Run once on the GPU from an empty cache, and read the allocator's peak and its record of requests."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats().get("allocated_bytes.all.current", 0)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=MOST_EVENTS)
    try:
        run = counted_run(program, inputs, streams)
        torch.cuda.synchronize()
        events = torch.cuda.memory._snapshot()["device_traces"][streams.device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    allocated = torch.cuda.memory_stats().get("allocated_bytes.all.peak", 0) - before
    reserved, replayed = replay_requests(events)
    return run._replace(allocated_bytes=int(allocated), reserved_bytes=reserved, replayed_bytes=replayed)


def replay_requests(events: Iterable[Mapping[str, Any]], settings: AllocatorSettings = PLAIN) -> tuple[int, int]:
    """The most bytes that torch's allocator reserved at once for recorded requests, and the most that our replay does.

    Each stream has a pool of its own; what another stream still reads is freed when that has finished
    (``free_completed``). Blocks from before the record are left out.

    Args:
        events: As in ``torch.cuda.memory._snapshot()["device_traces"][0]``: ``action``, ``addr``, ``size``, ``stream``.
        settings: How the allocator was set up.
    """
    pools = defaultdict[Any, CachingAllocator](lambda: new_allocator(settings))
    blocks = dict[int, tuple[Any, int]]()
    reserved = torch_most = our_most = 0
    for event in events:
        action, address, size, stream = (event.get(name, 0) for name in ("action", "addr", "size", "stream"))
        if action == "alloc":
            blocks[address] = stream, pools[stream].allocate(size)
            our_most = max(our_most, sum(pool.reserved_bytes for pool in pools.values()))
        elif action == "free_completed" and address in blocks:
            pool, mine = blocks.pop(address)
            pools[pool].free(mine)
        elif action in ("segment_alloc", "segment_map"):
            reserved += size
            torch_most = max(torch_most, reserved)
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
    return torch_most, our_most


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
