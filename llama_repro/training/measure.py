"""What really ran: one step under PyTorch's profiler, read from its trace.

- exposed time: on a CPU the time in ``wait_tensor``; on a GPU the time in which NCCL's kernels run and no others do.
- memory: what the allocator reports, as growth since the entry of each compiled graph; with and without what the
  process group allocates for itself, inside a ``c10d::`` operator or by another thread: gloo (torch 2.13) copies the
  input of a reduce_scatter until it is waited for, and holds a copy of an all_gather's output while it runs.
- overlap: the *program* of a graph, a letter for each launch (L), wait (W) and matrix product (M) in the order in which
  they ran. The sum over matrix products of the collectives in flight is the sum over collectives of the matrix products
  between launch and wait, so no pairs need be known.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from llama_repro.training.slow_network import Traffic

_GRAPH, _BACKWARD = "## Call CompiledFxGraph", "CompiledFunctionBackward"
_LAUNCHES = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single")
_C10D, _BACKEND = "_c10d_functional::", "c10d::"
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", _ATTENTION, _ATTENTION + "_backward")
_DEVICE_TYPES = {"cpu": 0, "cuda": 1}
"""As c10::DeviceType counts them; of ``[memory]`` events."""

_SETTLE_S = 1e-2
_SETTLED = 3
"""How many steps with waits that settle. On a busy machine gloo's thread may come too late all the same; what the
profiler then does not see freed is only ever too much, so the least counts."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """One call of a compiled graph.

    Attributes:
        kind: ``"forward"`` or ``"backward"``.
        growth_bytes: Most bytes allocated during it above those at its entry, without the process group's own.
        with_copies_bytes: The same with them.
        exposed_us: Time spent in its waits (on a CPU; ``None`` on a GPU, which runs behind).
        collectives: How many it launched.
        matmuls_in_between: Sum over its collectives of the matrix products between launch and wait, as executed.
        program: What it ran.
    """

    kind: str
    growth_bytes: int
    with_copies_bytes: int
    exposed_us: float | None
    collectives: int
    matmuls_in_between: int
    program: str


@dataclass(frozen=True)
class Profiled:
    """One step: its graphs in order, the most bytes allocated above those at its start, its exposed time."""

    graphs: tuple[Graph, ...]
    growth_bytes: int
    exposed_us: float


def profiled(step: Callable[[], object], device: torch.device, traffic: Traffic | None = None) -> Profiled:
    """Run ``step`` under the profiler.

    Args:
        step: What to run.
        device: Where it runs.
        traffic: On a CPU: the waits of its graphs. Then it runs once as it is, for its times, and some times with waits
            that settle, for its memory: on every rank as often, whatever is measured.
    """
    if traffic is None:
        return _profiled(step, device)
    timed = _profiled(step, device)
    traffic.settle_s = _SETTLE_S
    settled = [_profiled(step, device) for _ in range(_SETTLED)]
    traffic.settle_s = 0.0
    return with_least_memory(timed, settled)


def with_least_memory(timed: Profiled, settled: Sequence[Profiled]) -> Profiled:
    """``timed`` with the memory of each graph as in that step of ``settled`` where it grew least; of all, the least."""
    least = (
        min(runs, key=lambda run: run.growth_bytes) for runs in zip(*(step.graphs for step in settled), strict=True)
    )
    graphs = tuple(
        replace(one, growth_bytes=other.growth_bytes, with_copies_bytes=other.with_copies_bytes)
        for one, other in zip(timed.graphs, least, strict=True)
    )
    return replace(timed, graphs=graphs, growth_bytes=min(step.growth_bytes for step in settled))


def _profiled(step: Callable[[], object], device: torch.device) -> Profiled:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text())["traceEvents"], device.type)


def read_trace(events: Iterable[Event], device: str) -> Profiled:
    """Figures from the events of a Chrome trace of one step.

    Args:
        events: As ``profile.export_chrome_trace`` writes them; times in microseconds.
        device: ``"cpu"`` or ``"cuda"``: whose memory and waits.
    """
    timed = sorted((e for e in events if "ts" in e and "name" in e), key=lambda e: (e["ts"], -e.get("dur", 0)))
    memory = [e for e in timed if e["name"] == "[memory]" and e["args"]["Device Type"] == _DEVICE_TYPES[device]]
    spans = [e for e in timed if e.get("ph") == "X"]
    backwards = [e for e in spans if e["name"] == _BACKWARD]
    graphs = tuple(
        _graph(e, spans, memory, device, any(_within(e, b) for b in backwards))
        for e in spans
        if e["name"].startswith(_GRAPH)
    )
    if device == "cpu":
        exposed_us = sum(e["dur"] for e in spans if e["name"] == _C10D + "wait_tensor")
    else:
        exposed_us = exposed_on_gpu(spans)
    return Profiled(graphs, _growth(memory), exposed_us)


def exposed_on_gpu(spans: Iterable[Event]) -> float:
    """Microseconds in which kernels of NCCL run and no other kernel, copy or fill does."""
    marks: list[tuple[float, int, int]] = []
    for e in spans:
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = 0 if "nccl" in e["name"].lower() else 1
            marks += [(e["ts"], kind, 1), (e["ts"] + e["dur"], kind, -1)]
    running, since, exposed = [0, 0], 0.0, 0.0
    for at, kind, change in sorted(marks):
        if running[0] and not running[1]:
            exposed += at - since
        running[kind] += change
        since = at
    return exposed


def _graph(span: Event, spans: Sequence[Event], memory: Sequence[Event], device: str, backward: bool) -> Graph:
    inside = [e for e in spans if e["tid"] == span["tid"] and _within(e, span)]
    first, last = span["ts"], span["ts"] + span["dur"]
    waited_us = until = 0.0
    program = ""
    for e in inside:
        name: str = e["name"]
        if name.startswith(_C10D) and e["ts"] >= until:  # an operator of theirs may call another
            until = e["ts"] + e["dur"]
            if name == _C10D + "wait_tensor":
                program += "W"
                waited_us += e["dur"]
            elif name.removeprefix(_C10D).startswith(_LAUNCHES):
                program += "L"
        elif name in _MATMULS:
            program += "M"
    during = [e for e in memory if first <= e["ts"] <= last]
    backend = [(e["ts"], e["ts"] + e["dur"]) for e in inside if e["name"].startswith(_BACKEND)]
    return Graph(
        "backward" if backward else "forward",
        _growth(_without_copies(during, span["tid"], backend)),
        _growth(during),
        waited_us if device == "cpu" else None,
        program.count("L"),
        matmuls_in_between(program),
        program,
    )


def matmuls_in_between(program: str) -> int:
    """Sum over the collectives of a program of the matrix products between launch and wait."""
    in_flight = between = 0
    for letter in program:
        in_flight = max(0, in_flight + (letter == "L") - (letter == "W"))
        between += in_flight if letter == "M" else 0
    return between


def _without_copies(memory: Sequence[Event], tid: Any, backend: Sequence[tuple[float, float]]) -> list[Event]:
    """The events but for what other threads or the process group's operators allocate, and its end."""
    copies: dict[int, int] = {}
    kept: list[Event] = []
    for e in memory:
        nbytes, address, total = e["args"]["Bytes"], e["args"]["Addr"], e["args"]["Total Allocated"]
        theirs = address in copies
        if nbytes > 0 and (e["tid"] != tid or any(first <= e["ts"] <= last for first, last in backend)):
            copies[address], theirs = nbytes, True
        elif theirs:
            del copies[address]
        if not theirs:
            kept.append({**e, "args": {**e["args"], "Total Allocated": total - sum(copies.values())}})
    return kept


def _growth(memory: Sequence[Event]) -> int:
    """Most bytes above those before the first event."""
    if not memory:
        return 0
    start = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]
    return max(0, max(e["args"]["Total Allocated"] for e in memory) - start)


def _within(inner: Event, outer: Event) -> bool:
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
