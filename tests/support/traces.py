"""Traces of the torch profiler made by hand: events as Kineto writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
C10D = "_c10d_functional::"


def event(
    name: str, ts: float, dur: float, *dims: Sequence[Any], cat: str = "cpu_op", tid: int = 1, **args: Any
) -> Event:
    """An event of some microseconds; ``dims`` are the shapes of its inputs."""
    named = {name.replace("_", " "): value for name, value in args.items()}
    about = {"Input Dims": [list(shape) for shape in dims], **named}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": about}


def step(number: int, ts: float, dur: float) -> Event:
    """The mark that ``profile.step()`` leaves."""
    return event(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def region(ts: float, dur: float) -> Event:
    """The mark around a call of a compiled graph."""
    return event("## Call CompiledFxGraph abc ##", ts, dur, cat="user_annotation")


def kernel(name: str, ts: float, dur: float, correlation: int) -> Event:
    """What a GPU runs; launched by :func:`launch`."""
    return event(name, ts, dur, cat="kernel", tid=99, correlation=correlation)


def launch(ts: float, correlation: int) -> Event:
    """The call of CUDA's runtime that launches a kernel."""
    return event("cudaLaunchKernel", ts, 1, cat="cuda_runtime", correlation=correlation)


def nccl(
    op: str, ts: float, dur: float, *dims: Sequence[Any], number: int, ranks: str = "", **comms: Any
) -> list[Event]:
    """A collective of two microseconds on the host, and its kernel; ``ranks``: of its group, as Kineto writes them."""
    says = event("record_param_comms", ts + 0.5, 1, **{"Process Group Ranks": ranks, **comms})
    return [
        event(C10D + op, ts, 2, *dims),
        says,
        launch(ts + 0.6, number),
        kernel("ncclDevKernel_Something", ts + 100, dur, number),
    ]


def write(
    folder: Path, events: Sequence[Event], rank: int | None = 0, world_size: int = 2, name: str | None = None
) -> Path:
    """A trace of one rank as a file; ``rank`` None: of a job without process groups."""
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    path = folder / (name or f"rank{rank}.json")
    path.write_text(json.dumps({**about, "traceEvents": list(events)}))
    return path
