"""Traces of the torch profiler made by hand: events as Kineto writes them."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What is wrong with a trace, by the rules of its format: shares no code with what writes one.
#
# Rules: "Trace Event Format" (Google, the document that Perfetto's page on JSON traces refers to) for fields, nesting,
# counters and flows; that page (``docs/getting-started/other-formats.md`` of Perfetto) for the phases shown; and
# where they leave room, what Perfetto's trace processor does with a file
# (``importers/json``, ``slice_tracker.cc``, ``flow_tracker.cc``): ids are numbers, times are nanoseconds, spans that
# overlap are dropped, and the end of an arrow is bound to the innermost span of its row that stands in front of it.


Event = dict[str, Any]
Row = tuple[int, int]

_PHASES = frozenset("XiCMstf")
_METADATA = {"process_name": ("name", str), "process_sort_index": ("sort_index", int)}
_METADATA |= {"thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
_COLOURS = """
thread_state_uninterruptible thread_state_iowait thread_state_running thread_state_runnable thread_state_sleeping
thread_state_unknown background_memory_dump light_memory_dump detailed_memory_dump vsync_highlight_color
generic_work good bad terrible black grey white yellow olive rail_response rail_animation rail_idle rail_load
startup heap_dump_stack_frame heap_dump_object_type heap_dump_child_node_arrow cq_build_running cq_build_passed
cq_build_failed cq_build_abandoned cq_build_attempt_runnig cq_build_attempt_passed cq_build_attempt_failed
"""


def violations(text: str) -> list[str]:
    """One line per broken rule; none: it is fine."""
    trace = json.loads(text, parse_constant=lambda name: f"not a number of JSON: {name}")
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no object with a list of traceEvents"]
    found = [] if trace.get("displayTimeUnit", "ms") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    events = trace["traceEvents"]
    for k, e in enumerate(events):
        found += [f"event {k} ({e.get('name') if isinstance(e, dict) else e}): {what}" for what in _event(e)]
    return found or [*_names(events), *_counters(events), *_replayed(events), *_flows(events)]


def _event(e: Any) -> list[str]:
    if not isinstance(e, dict) or e.get("ph") not in _PHASES:
        return ["is no object with a known phase"]
    ph, args = e["ph"], e.get("args", {})
    key, kind = _METADATA.get(e.get("name", ""), ("", object))
    rules = {
        "has no name": isinstance(e.get("name"), str) and e["name"],
        "pid or tid is no 32-bit number": all(type(e.get(of)) is int and 0 <= e[of] < 2**32 for of in ("pid", "tid")),
        "ts is no number": ph == "M" or _number(e.get("ts")),
        "args is no object": isinstance(args, dict),
        "cat is no text": isinstance(e.get("cat", ""), str),
        "cname is none of the reserved names": e.get("cname", "good") in _COLOURS.split(),
        "dur is no duration": ph != "X" or (_number(e.get("dur")) and e["dur"] >= 0),
        "args are no series of numbers": ph != "C" or (args and all(map(_number, args.values()))),
        "s is no scope": ph != "i" or e.get("s", "t") in ("g", "p", "t"),
        "has no id and category to be found by": ph not in "stf" or (type(e.get("id")) is int and "cat" in e),
        "bp is not the e of an end": "bp" not in e or (ph == "f" and e["bp"] == "e"),
        "is no metadata that is documented": ph != "M" or (key and type(args.get(key)) is kind),
    }
    return [rule for rule, kept in rules.items() if not kept]


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _names(events: list[Event]) -> list[str]:
    """Each process and each row with a span is named once, and a thread is of one process."""
    processes = [e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    rows = [_row(e) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    drawn = dict.fromkeys(_row(e) for e in events if e["ph"] == "X")
    found = [
        f"process {pid} has {processes.count(pid)} names"
        for pid in dict.fromkeys(e["pid"] for e in events)
        if processes.count(pid) != 1
    ]
    found += [f"row {row} has {rows.count(row)} names" for row in drawn if rows.count(row) != 1]
    threads = [tid for _, tid in dict.fromkeys(rows)]
    return found + [f"thread {tid} is in several processes" for tid in set(threads) if threads.count(tid) > 1]


def _row(e: Event) -> Row:
    return e["pid"], e["tid"]


def _counters(events: list[Event]) -> list[str]:
    """A counter always has the same series, and its values are in order of time."""
    series: dict[tuple[int, str], Event] = {}
    found = []
    for e in events:
        if e["ph"] == "C":
            before = series.setdefault((e["pid"], e["name"]), e)
            if set(before["args"]) != set(e["args"]):
                found.append(f"counter {e['name']} of process {e['pid']} has other series at {e['ts']}")
            if e["ts"] < before["ts"]:
                found.append(f"counter {e['name']} of process {e['pid']} goes back to {e['ts']}")
            series[e["pid"], e["name"]] = e
    return found


def _ns(us: float) -> int:
    return round(1000 * us)


def _replayed(events: list[Event]) -> list[str]:
    """Read as Perfetto does: by time, then as they stand; spans nest or are apart, arrows are bound within a span."""
    open_: dict[Row, list[tuple[int, int]]] = defaultdict(list)
    found = []
    for e in sorted((e for e in events if e["ph"] in "Xstf"), key=lambda e: _ns(e["ts"])):
        ts, stack = _ns(e["ts"]), open_[_row(e)]
        if e["ph"] == "X":
            dur = _ns(e["dur"])
            while stack and (stack[-1][1] < ts or (stack[-1][1] == ts and (dur or stack[-1][0] < stack[-1][1]))):
                stack.pop()
            if any(ts < end < ts + dur for _, end in stack):
                found.append(f"{e['name']} at {e['ts']} overlaps another span of its row")
            stack.append((ts, ts + dur))
        elif not stack or not stack[-1][0] <= ts <= stack[-1][1]:
            found.append(f"the {e['ph']} of arrow {e['id']} at {e['ts']} is in no span")
    return found


def _flows(events: list[Event]) -> list[str]:
    """An arrow begins once, may pass spans, and ends once, forward in time."""
    arrows: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for e in sorted((e for e in events if e["ph"] in "stf"), key=lambda e: _ns(e["ts"])):
        arrows[e["cat"], e["name"], e["id"]].append(e)
    found = []
    for (_, name, id_), parts in arrows.items():
        phases = "".join(e["ph"] for e in parts)
        if phases != "s" + "t" * (len(parts) - 2) + "f":
            found.append(f"arrow {name} {id_} is {phases}, not s, t ..., f")
        elif "bp" not in parts[-1]:
            found.append(f"arrow {name} {id_} does not end at the span around its end")
    return found


# The recorded traces in ``tests/data/profile``: of a real run, with what no test reads left out.
#
# Made by ``OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 scripts/train.py --device cpu --steps 3 --trace DIR`` (tiny
# model, fsdp, bf16, gloo, torch 2.13.0, two virtual cores of an x86-64 machine, 2026-11-22): two of the three steps,
# only events that are in a compiled graph or on a thread of gloo's, times from the first event on; of the graphs,
# without the settings of that machine.

FOLDER = Path(__file__).parents[1] / "data" / "profile"
TRACES = (FOLDER / "rank0.json.gz", FOLDER / "rank1.json.gz")
GRAPHS = (FOLDER / "forward.py.gz", FOLDER / "backward.py.gz")
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
