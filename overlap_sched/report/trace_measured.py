"""Real steps in a trace: one step of each torch profiler trace, as processes beside the simulated ones.

Of the steps that all traces have (``ProfilerStep#7``) the one of median length is taken; of a trace without such marks,
all that is in it. Times are shifted so that the step begins at 0 on each rank: clocks of different machines need not
agree, and arrows between ranks are not drawn. Kept is what the host began within the step and what that launched on
the device, even where it ran after the host's step (found by correlation ids; where there are none, by time), with
arrows between them, and counters and marks within the step. Processes and threads get ids of their own, as the format
wants numbers, and names that say *measured*.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from overlap_sched.cost.profile import DEVICE, STEP, TraceFile, is_time, read_trace_file
from overlap_sched.errors import CostError
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits

Event = dict[str, Any]
_FLOW = ("s", "t", "f")
_POINT = ("C", "i", "I")
Place = tuple[str, str]
"""Process and thread, as the trace has them."""


def rounded_us(at_us: float) -> float:
    """To nanoseconds."""
    return round(at_us, 3)


class MeasuredStep(NamedTuple):
    """One step of one rank, as it was measured.

    Attributes:
        path: Of the trace.
        rank: As the trace says; ``None``: it does not.
        number: Of the step; ``None``: no steps are marked, it is all that is in the trace.
        us: How long the host took for it.
        events: Shifted so that it begins at 0; processes and threads as in the trace.
        names: (metadata, process, thread) -> value, for ``process_name``, ``process_labels`` and ``thread_name``.
    """

    path: str
    rank: int | None
    number: int | None
    us: float
    events: Sequence[Event]
    names: Mapping[tuple[str, str, str], str]

    def about(self) -> dict[str, Any]:
        """For people who read the file."""
        return {"trace": Path(self.path).name, "rank": self.rank, "step": self.number, "step_us": rounded_us(self.us)}


def read_measured_steps(paths: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> tuple[MeasuredStep, ...]:
    """The same step of each rank.

    Raises:
        CostError: One cannot be read, is no such trace, has nothing in it, or they share no step.
        InputTooLargeError: One is larger than the limits.
    """
    traces = [read_trace_file(path, limits) for path in paths]
    for trace in traces:
        if not trace.events:
            raise CostError(f"{trace.path}: has no event with a duration: nothing was measured.")
    marks = [_marks(trace) for trace in traces]
    shared = [number for number in marks[0] if all(number in others for others in marks)] if marks else []
    if not shared:
        steps = [", ".join("no marked step" if of is None else f"step {of}" for of in numbers) for numbers in marks]
        listed = "; ".join(f"{of.path} has {its}" for of, its in zip(traces, steps, strict=True))
        raise CostError(f"the traces share no step: {listed}. Profile the same steps on all ranks.")
    by_length = sorted(shared, key=lambda number: sum(end - begin for begin, end in (found[number] for found in marks)))
    chosen = by_length[(len(by_length) - 1) // 2]
    return tuple(_step(trace, chosen, *found[chosen]) for trace, found in zip(traces, marks, strict=True))


def _marks(trace: TraceFile) -> dict[int | None, tuple[float, float]]:
    """Begin and end of each step on the host; of all that is there, where no steps are marked.

    Without steps in which nothing begins: the profiler opens one at each ``step()``, also after the last.
    """
    events = trace.events
    marks: dict[int | None, tuple[float, float]] = {
        int(found[1]): (e.start_us, e.end_us)
        for e in events
        if (found := STEP.match(e.name)) and not e.category.startswith("gpu_")
    }
    starts = sorted(e.start_us for e in events if not STEP.match(e.name))
    full = {step: ends for step, ends in marks.items() if bisect_left(starts, ends[0]) < bisect_left(starts, ends[1])}
    return full or marks or {None: (min(e.start_us for e in events), max(e.end_us for e in events))}


def _step(trace: TraceFile, number: int | None, begin: float, end: float) -> MeasuredStep:
    host = [e for e in trace.events if e.category not in DEVICE and begin <= e.start_us < end]
    launched = {str(e.args["correlation"]) for e in host if "correlation" in e.args}

    def within(e: Event) -> bool:
        args = e.get("args")
        correlation = args.get("correlation") if isinstance(args, dict) else None
        if e.get("cat") in DEVICE and correlation is not None and launched:
            return str(correlation) in launched
        return number is None or bool(begin <= e["ts"] < end)

    timed = [e for e in trace.fields if is_time(e.get("ts"))]
    spans = [e for e in timed if e.get("ph") == "X" and is_time(e.get("dur")) and within(e)]
    points = [e for e in timed if e.get("ph") in _POINT and begin <= e["ts"] <= end]
    kept = [_shifted(e, begin) for e in [*spans, *points, *_arrows(timed, spans)]]
    kept.sort(key=lambda e: (e["ts"], e["ph"] != "X", -e.get("dur", 0.0)))  # who calls, who is called, arrows at them
    return MeasuredStep(trace.path, trace.rank, number, end - begin, kept, _names(trace.fields))


def _arrows(fields: Sequence[Event], spans: Sequence[Event]) -> list[Event]:
    """Arrows of which each end is at a span that is kept."""
    ends = defaultdict[Place, list[tuple[float, float]]](list)
    for e in sorted(spans, key=lambda e: float(e["ts"])):
        before = ends[place_of(e)]
        before.append((e["ts"], max(e["ts"] + e["dur"], before[-1][1] if before else 0.0)))

    def at_a_span(e: Event) -> bool:
        starts = ends.get(place_of(e), [])
        k = bisect_right(starts, e["ts"], key=lambda span: span[0])
        return k > 0 and starts[k - 1][1] >= e["ts"]

    parts = defaultdict[tuple[str, str, str], list[Event]](list)
    for e in fields:
        if e.get("ph") in _FLOW and type(e.get("id")) is int:
            parts[str(e.get("cat")), str(e.get("name")), str(e["id"])].append(e)
    return [
        {**e, "bp": "e"} if e["ph"] == "f" else e
        for arrow in parts.values()
        if [e["ph"] for e in arrow].count("s") == [e["ph"] for e in arrow].count("f") == 1
        and all(map(at_a_span, arrow))
        for e in sorted(arrow, key=lambda e: (e["ts"], _FLOW.index(e["ph"])))
    ]


def place_of(e: Event) -> Place:
    """Process and thread of an event."""
    return str(e.get("pid")), str(e.get("tid"))


def _shifted(e: Event, begin: float) -> Event:
    """The event with times from 0; what JSON has no number for becomes text."""
    moved = {**_finite(e), "ts": rounded_us(e["ts"] - begin)}
    if e["ph"] == "X":
        moved["dur"] = rounded_us(e["dur"])
    if e["ph"] == "I":
        moved["ph"] = "i"  # as the format has called it since
    return moved


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _names(fields: Sequence[Event]) -> dict[tuple[str, str, str], str]:
    keys = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
    found = {}
    for e in fields:
        args, key = e.get("args"), keys.get(str(e.get("name")))
        if e.get("ph") == "M" and key and isinstance(args, dict):
            thread = place_of(e)[1] if e["name"] == "thread_name" else ""
            found[e["name"], place_of(e)[0], thread] = str(args.get(key, ""))
    return found
