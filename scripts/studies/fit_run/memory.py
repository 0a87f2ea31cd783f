"""The measured peak of one step: what the profiler saw of the CPU allocator, without the process group's own copies."""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from scripts.studies.footprint.events import Event, peak_of

_BACKEND = "c10d::"


def measured_peak(step: Callable[[], object], held_bytes: int) -> int:
    """The most bytes live at once.

    gloo (torch 2.13) copies the input of a reduce_scatter until it is waited for, and holds a copy of an all_gather's
    output while it runs, in an operator of its own or in a thread of its own. NCCL makes no copies, nor does the
    prediction know any: they are left out.

    Args:
        step: Forward and backward.
        held_bytes: What is there before: shards, the batch.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return peak_of(events_of(json.loads(path.read_text())["traceEvents"]), held_bytes).bytes


def events_of(trace: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Allocations of the thread that computes, and all frees of them."""
    timed = sorted((e for e in trace if "ts" in e), key=lambda e: e["ts"])
    memory = [e for e in timed if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0 and e["args"]["Bytes"]]
    computes = _thread(timed)
    inside = [(e["ts"], e["ts"] + e["dur"]) for e in timed if e["name"].startswith(_BACKEND) and e.get("ph") == "X"]
    found: list[Event] = []
    ours: set[int] = set()
    for e, within in zip(memory, _within([e["ts"] for e in memory], inside), strict=True):
        address, nbytes = e["args"]["Addr"], e["args"]["Bytes"]
        if nbytes > 0 and (within or e["tid"] != computes):
            ours.discard(address)
            continue
        if nbytes > 0:
            ours.add(address)
        elif address not in ours:
            continue
        found.append(Event(address, nbytes, False))
    return found


def _thread(timed: Sequence[Mapping[str, Any]]) -> Any:
    """The thread with the most operators."""
    counts: dict[Any, int] = {}
    for e in timed:
        if e.get("cat") == "cpu_op":
            counts[e["tid"]] = counts.get(e["tid"], 0) + 1
    return max(counts, key=lambda tid: counts[tid])


def _within(times: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[bool]:
    """Per time, in ascending order, whether a span (by its begin) holds it."""
    found, k, until = [], 0, float("-inf")
    for at in times:
        while k < len(spans) and spans[k][0] <= at:
            until = max(until, spans[k][1])
            k += 1
        found.append(at <= until)
    return found
