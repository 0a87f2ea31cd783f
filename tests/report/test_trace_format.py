"""The judge of traces notices what is wrong with one."""

import json
from typing import Any

import pytest

from tests.support.trace_format import violations

Event = dict[str, Any]


def fine() -> list[Event]:
    """Two rows, an arrow between them, a counter and a mark."""
    return [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "p"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 10, "args": {"name": "a"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 11, "args": {"name": "b"}},
        {"ph": "X", "name": "outer", "cat": "c", "pid": 1, "tid": 10, "ts": 0, "dur": 10.5, "args": {}},
        {"ph": "X", "name": "inner", "cat": "c", "pid": 1, "tid": 10, "ts": 2, "dur": 8.5},
        {"ph": "s", "name": "n", "cat": "c", "id": 5, "pid": 1, "tid": 10, "ts": 2},
        {"ph": "X", "name": "point", "cat": "c", "pid": 1, "tid": 11, "ts": 4, "dur": 0, "cname": "bad"},
        {"ph": "f", "name": "n", "cat": "c", "id": 5, "pid": 1, "tid": 11, "ts": 4, "bp": "e"},
        {"ph": "C", "name": "m", "pid": 1, "tid": 0, "ts": 0, "args": {"x": 1, "y": 2}},
        {"ph": "C", "name": "m", "pid": 1, "tid": 0, "ts": 3, "args": {"x": 2, "y": 2}},
        {"ph": "i", "s": "p", "name": "mark", "pid": 1, "tid": 10, "ts": 1},
    ]


def said(events: list[Event], **more: object) -> list[str]:
    return violations(json.dumps({"traceEvents": events, **more}))


def test_a_fine_trace() -> None:
    assert said(fine()) == []
    assert said(fine(), displayTimeUnit="ns") == []


def test_no_trace() -> None:
    assert violations("[]") == ["no object with a list of traceEvents"]
    assert said(fine(), displayTimeUnit="s") == ["displayTimeUnit is neither ms nor ns"]


@pytest.mark.parametrize(
    ("at", "change", "wrong"),
    [
        (3, {"ph": "Y"}, "event 3 (outer): is no object with a known phase"),
        (3, {"name": ""}, "event 3 (): has no name"),
        (3, {"pid": "1"}, "event 3 (outer): pid is no 32-bit number"),
        (3, {"tid": 2**32}, "event 3 (outer): tid is no 32-bit number"),
        (3, {"ts": "0"}, "event 3 (outer): ts is no number"),
        (3, {"dur": -1}, "event 3 (outer): dur is no duration"),
        (3, {"dur": float("nan")}, "event 3 (outer): dur is no duration"),
        (3, {"args": []}, "event 3 (outer): args is no object"),
        (3, {"cat": None}, "event 3 (outer): cat is no text"),
        (6, {"cname": "scarlet"}, "event 6 (point): cname is none of the reserved names"),
        (9, {"args": {}}, "event 9 (m): args are no series of numbers"),
        (9, {"args": {"x": True, "y": 1}}, "event 9 (m): args are no series of numbers"),
        (10, {"s": "x"}, "event 10 (mark): s is no scope"),
        (5, {"id": "5"}, "event 5 (n): has no id and category to be found by"),
        (5, {"bp": "e"}, "event 5 (n): bp is not the e of an end"),
        (0, {"args": {"name": 1}}, "event 0 (process_name): is no metadata that is documented"),
        (0, {"name": "process_colour"}, "event 0 (process_colour): is no metadata that is documented"),
        (0, {"pid": 2}, "process 1 has 0 names"),
        (1, {"tid": 11}, "row (1, 10) has 0 names"),
        (9, {"args": {"x": 1}}, "counter m of process 1 has other series at 3"),
        (8, {"ts": 4}, "counter m of process 1 goes back to 3"),
        (4, {"dur": 8.501}, "inner at 2 overlaps another span of its row"),
        (7, {"ts": 4.001}, "the f of arrow 5 at 4.001 is in no span"),
        (5, {"ts": 11}, "the s of arrow 5 at 11 is in no span"),
        (7, {"id": 6}, "arrow n 5 is s, not s, t ..., f"),
        (7, {"ph": "t", "bp": None}, "event 7 (n): bp is not the e of an end"),
    ],
)  # fmt: skip
def test_what_is_wrong(at: int, change: Event, wrong: str) -> None:
    events = fine()
    events[at] |= change
    assert wrong in said(events)


def test_an_arrow_in_front_of_its_span_and_one_that_goes_back() -> None:
    events = fine()
    events[6:8] = [events[7], events[6]]
    assert said(events) == ["the f of arrow 5 at 4 is in no span"]
    events = fine()
    events[5] |= {"ts": 5}
    assert said(events) == ["arrow n 5 is fs, not s, t ..., f"]
    events = fine()
    del events[7]["bp"]
    assert said(events) == ["arrow n 5 does not end at the span around its end"]


def test_a_thread_of_two_processes() -> None:
    other = [
        {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "q"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 10, "args": {"name": "a"}},
    ]
    assert said(fine() + other) == ["thread 10 is in several processes"]
