"""What is wrong with a trace, by the rules of its format: shares no code with what writes one.

Rules: "Trace Event Format" (Google, the document that Perfetto's page on JSON traces refers to) for fields, nesting,
counters and flows; that page (``docs/getting-started/other-formats.md`` of Perfetto) for the phases that are shown; and
where they leave room, what Perfetto's trace processor does with a file
(``importers/json``, ``slice_tracker.cc``, ``flow_tracker.cc``): ids are numbers, times are nanoseconds, spans that
overlap are dropped, and the end of an arrow is bound to the innermost span of its row that stands in front of it.
"""

import json
import math
from collections import defaultdict
from typing import Any

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
