"""Traces of the torch profiler made by hand: events as Kineto writes them."""

import gzip
import json
import math
import sys
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

_PHASES = frozenset("BEXIiCMstf")
_METADATA = {
    "process_name": ("name", str), "process_labels": ("labels", str), "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip
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
    if not isinstance(e, dict) or not isinstance(e.get("ph"), str) or e["ph"] not in _PHASES:
        return ["is no object with a known phase"]
    ph, found = e["ph"], []
    if not isinstance(e.get("name"), str) or not e["name"]:
        found.append("has no name")
    for key in ("pid", "tid"):
        if type(e.get(key)) is not int or not 0 <= e[key] < 2**32:
            found.append(f"{key} is no 32-bit number")
    if ph != "M" and not _number(e.get("ts")):
        found.append("ts is no number")
    if not isinstance(e.get("args", {}), dict):
        found.append("args is no object")
    if "cat" in e and not isinstance(e["cat"], str):
        found.append("cat is no text")
    if "cname" in e and e["cname"] not in _COLOURS.split():
        found.append("cname is none of the reserved names")
    return found + _of_phase(ph, e)


def _of_phase(ph: str, e: Event) -> list[str]:
    if ph == "X" and (not _number(e.get("dur")) or e["dur"] < 0):
        return ["dur is no duration"]
    if ph == "C" and not (isinstance(e.get("args"), dict) and e["args"] and all(map(_number, e["args"].values()))):
        return ["args are no series of numbers"]
    if ph == "i" and e.get("s", "t") not in ("g", "p", "t"):
        return ["s is no scope"]
    if ph in "stf" and (type(e.get("id")) is not int or e["id"] < 0 or not isinstance(e.get("cat"), str)):
        return ["has no id and category to be found by"]
    if ph in "stf" and ("bp" in e and (ph != "f" or e["bp"] != "e")):
        return ["bp is not the e of an end"]
    if ph == "M":
        key, kind = _METADATA.get(e.get("name", ""), ("", object))
        if not key or type(e.get("args", {}).get(key)) is not kind:
            return ["is no metadata that is documented"]
    return []


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
# model, fsdp, bf16, gloo, torch 2.13.0, two virtual cores of an x86-64 machine, 2026-11-22), then
# ``python -m tests.support.traces DIR``: two of the three steps, only events that are in a compiled graph or on a
# thread of gloo's, times from the first event on; of the graphs, without the settings of that machine.


FOLDER = Path(__file__).parents[1] / "data" / "profile"
TRACES = (FOLDER / "rank0.json.gz", FOLDER / "rank1.json.gz")
GRAPHS = (FOLDER / "forward.py.gz", FOLDER / "backward.py.gz")
_STEPS = 2
_ARGS = ("External id", "Input Dims", "Input type", "Concrete Inputs")
_ABOUT = ("schemaVersion", "record_shapes", "distributedInfo")


def trimmed(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace without what no test reads."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["cat"] in ("cpu_op", "user_annotation")]
    marks = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])[:_STEPS]
    spans = [e for e in events if e["name"].startswith("## Call CompiledFxGraph")]
    first, last = marks[0]["ts"], marks[-1]["ts"] + marks[-1]["dur"]
    kept = [
        e
        for e in events
        if first <= e["ts"] < last
        and (
            e in marks
            or e["name"].startswith("gloo:")
            or any(e["tid"] == s["tid"] and s["ts"] <= e["ts"] < s["ts"] + s["dur"] for s in spans)
        )
    ]
    about = {name: trace[name] for name in _ABOUT}
    return {**about, "traceEvents": [_trimmed_event(e, first) for e in sorted(kept, key=lambda e: e["ts"])]}


def _trimmed_event(e: dict[str, Any], first: float) -> dict[str, Any]:
    args = {name: e["args"][name] for name in _ARGS if name in e["args"]}
    if not e["name"].startswith("_c10d_functional::"):
        args.pop("Concrete Inputs", None)
    fields = {name: e[name] for name in ("ph", "cat", "name", "pid", "tid")}
    return {**fields, "ts": round(e["ts"] - first, 3), "dur": round(e["dur"], 3), "args": args}


def main(folder: Path) -> None:
    """Write the data anew, from what ``--trace`` has written."""
    FOLDER.mkdir(exist_ok=True)
    for target in TRACES:
        with gzip.open(folder / target.name) as file:
            text = json.dumps(trimmed(json.load(file)), separators=(",", ":"))
        target.write_bytes(gzip.compress(text.encode(), mtime=0))
    for k, target in enumerate(GRAPHS):
        lines = (folder / f"graph-{k}.py").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("os.environ", "torch._"))]  # the machine's own settings
        target.write_bytes(gzip.compress("".join(kept).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))


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
