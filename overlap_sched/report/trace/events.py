"""Events of a trace as JSON objects: "Trace Event Format", which Perfetto and chrome://tracing read.

Times are microseconds, rounded to nanoseconds, which is what Perfetto keeps: start and end alike, so that rows stay
free of overlaps. Perfetto binds an arrow's end to the span of its row that stands last in front of it in time and
file, so it is written right behind that span.
"""

from typing import Any, Literal

Event = dict[str, Any]


def rounded_us(at_us: float) -> float:
    """To nanoseconds."""
    return round(at_us, 3)


def process_named(pid: int, name: str) -> list[Event]:
    """Name a process; processes are listed by their ids."""
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}},
    ]


def row_named(pid: int, tid: int, name: str) -> list[Event]:
    """Name a row (thread); rows are listed by their ids."""
    return [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}},
        {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
    ]


def span(pid: int, tid: int, name: str, category: str, start_us: float, end_us: float, args: Event) -> Event:
    """Something with a duration, which may be 0."""
    start, end = rounded_us(start_us), rounded_us(end_us)
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": start}
    return {**event, "dur": round(end - start, 3), "args": args}


def arrow(phase: Literal["s", "t", "f"], pid: int, tid: int, category: str, id_: int, at_us: float) -> Event:
    """Where an arrow begins (``s``), passes (``t``) or ends (``f``): at the span of its row in front of it in the file.

    All parts of an arrow have the same category, which is its name, too, and the same id, unique within the category.
    """
    event = {"ph": phase, "pid": pid, "tid": tid, "name": category, "cat": category, "id": id_}
    return {**event, "ts": rounded_us(at_us), **({"bp": "e"} if phase == "f" else {})}


def counter(pid: int, name: str, at_us: float, values: dict[str, int]) -> Event:
    """Values from then on; Perfetto draws a track for each, chrome://tracing stacks them."""
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": rounded_us(at_us), "args": values}


def mark(pid: int, tid: int, name: str, at_us: float) -> Event:
    """A line through all rows of a process."""
    return {"ph": "i", "s": "p", "pid": pid, "tid": tid, "name": name, "ts": rounded_us(at_us)}
