"""The events of a torch profiler trace, from its file; nothing of the file is trusted.

Traces are what ``torch.profiler.profile.export_chrome_trace`` writes: JSON, plain or gzipped, with a list of events in
the Chrome trace format under ``traceEvents`` (times in microseconds), and what Kineto says of the job beside it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from overlap_sched.errors import ProfileError
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits
from overlap_sched.problem.unpack import read_json

_PARTS_PER_NODE = 16
"""JSON objects and lists per node of the limit, as for problem files: parsed, they take far more than their text."""


class Event(NamedTuple):
    """What happened for some time on one thread or stream.

    Attributes:
        name, category: As in the file: ``aten::mm``, ``cpu_op``.
        start_us, end_us: By the clock of its machine.
        thread: Of which process and thread (of a kernel: device and stream).
        args: What the profiler says of it.
    """

    name: str
    category: str
    start_us: float
    end_us: float
    thread: tuple[str, str]
    args: Mapping[str, Any]


class TraceFile(NamedTuple):
    """The events of one rank.

    Attributes:
        path: For messages.
        rank, world_size: As the trace says; ``None`` where it does not (a job without process groups).
        events: Those with a duration, in the order of the file, checked.
        fields: All events as they are, each a JSON object.
    """

    path: str
    rank: int | None
    world_size: int | None
    events: Sequence[Event]
    fields: Sequence[dict[str, Any]]


def read_trace_file(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> TraceFile:
    """Read a trace.

    Raises:
        ProfileError: It cannot be read, or is not such a trace.
        InputTooLargeError: It is larger than the limits.
    """
    data = _load(path, limits)
    listed = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ProfileError(
            f"{path}: has no list of traceEvents: it is not a trace of torch.profiler. "
            "Write one with profile.export_chrome_trace(PATH)."
        )
    about = data.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    events = [event for k, fields in enumerate(listed) if (event := _event(path, k, fields)) is not None]
    return TraceFile(str(path), _number_of(about, "rank"), _number_of(about, "world_size"), events, listed)


def _number_of(about: Mapping[str, Any], name: str) -> int | None:
    value = about.get(name)
    return value if type(value) is int else None


def _event(path: str | Path, k: int, fields: Any) -> Event | None:
    """An event with a duration; None: it has none (a mark, an arrow, a name of a thread)."""
    if not isinstance(fields, dict):
        raise ProfileError(f"{path}: traceEvents[{k}] is {_shown(fields)}; an event is a JSON object.")
    if fields.get("ph") != "X" or "dur" not in fields:
        return None
    name, start_us, dur_us = fields.get("name"), fields.get("ts"), fields["dur"]
    if not isinstance(name, str):
        raise ProfileError(f"{path}: traceEvents[{k}] has name {_shown(name)}; it is a text.")
    if not is_time(start_us) or not is_time(dur_us) or dur_us < 0:
        raise ProfileError(
            f"{path}: traceEvents[{k}] ({_shown(name)}) has ts {_shown(start_us)} and dur {_shown(dur_us)}; "
            "they are microseconds, and a duration is 0 or more."
        )
    category, args = fields.get("cat"), fields.get("args")
    return Event(
        name,
        category if isinstance(category, str) else "",
        float(start_us),
        float(start_us) + float(dur_us),
        (str(fields.get("pid")), str(fields.get("tid"))),
        args if isinstance(args, dict) else {},
    )


def is_time(value: Any) -> TypeGuard[float]:
    """Tell whether it is a number that can be microseconds."""
    return type(value) in (int, float) and abs(value) < 1e18 and math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _load(path: str | Path, limits: Limits) -> Any:
    def too_many(parts: int) -> str:
        if parts <= _PARTS_PER_NODE * limits.nodes:
            return ""
        return (
            f"{path}: has {parts:,} objects and lists, more than {_PARTS_PER_NODE} for each of {limits.nodes:,} nodes, "
            "which is the limit. Profile fewer steps, or raise the limit (--max-nodes on the command line)."
        )

    return read_json(path, limits, "trace", ProfileError, too_many)
