"""Real steps in a trace: which step, what of it, shifted to 0, in processes of their own that say so."""

import json
from pathlib import Path
from typing import Any

import pytest

from overlap_sched.errors import CostError, InputTooLargeError
from overlap_sched.problem import EXAMPLE
from overlap_sched.problem.file import Limits
from overlap_sched.report.trace.file import trace_document
from overlap_sched.report.trace.measured import MeasuredStep, read_measured_steps
from overlap_sched.scheduler.driver import Schedule
from tests.support.profile_traces import TRACES
from tests.support.trace_format import violations
from tests.support.traces import Event, event, kernel, launch, step, write


def meta(of: str, pid: int | str, tid: int | str, **args: object) -> Event:
    return {"ph": "M", "name": of, "pid": pid, "tid": tid, "ts": 0, "args": args}


def arrow(phase: str, ts: float, id_: int, pid: int | str, tid: int | str) -> Event:
    more = {"bp": "e"} if phase == "f" else {}
    return {"ph": phase, "name": "ac2g", "cat": "ac2g", "id": id_, "pid": pid, "tid": tid, "ts": ts, **more}


def gpu_trace() -> list[Event]:
    """Two steps of a GPU that runs behind its host, as Kineto writes them."""
    return [
        meta("process_name", 7, 0, name="python"),
        meta("process_labels", 7, 0, labels="CPU"),
        meta("process_name", 0, 0, name="python"),
        meta("process_labels", 0, 0, labels="GPU 0"),
        meta("thread_name", 7, 1, name="thread 1 (main)"),
        meta("thread_name", 0, 4, name="stream 7"),
        step(3, 1000, 100),
        event("aten::mm", 1010, 20),
        launch(1015, 41),
        step(4, 1100, 90),
        event("aten::add", 1110, 5),
        event("aten::mm", 1110, 20),
        launch(1115, 42),
        {**kernel("late_of_step_3", 1120, 30, 41), "pid": 0, "tid": 4},
        {**kernel("ran_after_the_step", 1195, 50, 42), "pid": 0, "tid": 4},
        arrow("s", 1015, 41, 7, 1),
        arrow("f", 1120, 41, 0, 4),
        arrow("s", 1115, 42, 7, 1),
        arrow("f", 1195, 42, 0, 4),
        arrow("s", 1115, 43, 7, 1),  # without an end
        arrow("s", 1115, 44, 7, 1),
        arrow("f", 1250, 44, 0, 4),  # to nothing
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": 1, "ts": 1120, "args": {"Bytes": float("nan")}},
        {"ph": "i", "s": "g", "name": "of the step before", "pid": 7, "tid": 1, "ts": 1000},
    ]


def merged(steps: tuple[MeasuredStep, ...], reordered: Schedule) -> list[Event]:
    document = trace_document(reordered, EXAMPLE, steps)
    text = json.dumps(document, allow_nan=False)
    assert violations(text) == []
    assert document["otherData"]["note"].endswith("; the others: measured")
    found: list[Event] = json.loads(text)["traceEvents"]
    return [e for e in found if e["pid"] > 2]


def test_a_step_of_a_gpu(tmp_path: Path, reordered: Schedule) -> None:
    (measured,) = read_measured_steps([str(write(tmp_path, gpu_trace(), rank=None, name="job.json"))])
    found = merged((measured,), reordered)
    assert (measured.number, measured.us) == (4, 90)  # of two, the lower median
    assert [(e["name"], e["pid"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"] == [
        ("ProfilerStep#4", 3, 0, 90),
        ("aten::mm", 3, 10, 20),
        ("aten::add", 3, 10, 5),
        ("cudaLaunchKernel", 3, 15, 1),
        ("ran_after_the_step", 4, 95, 50),
    ]
    assert [(e["ph"], e["id"], e["ts"]) for e in found if e["ph"] in "stf"] == [("s", 42, 15), ("f", 42, 95)]
    assert [(e["name"], e["ts"], e["args"]) for e in found if e["ph"] == "i"] == [("[memory]", 20, {"Bytes": "nan"})]
    names = [(e["name"], e["pid"], e["args"]["name"]) for e in found if e["name"].endswith("_name")]
    assert names == [
        ("process_name", 3, "job.json: python CPU (measured, step 4)"),
        ("thread_name", 3, "thread 1 (main)"),
        ("process_name", 4, "job.json: python GPU 0 (measured, step 4)"),
        ("thread_name", 4, "stream 7"),
    ]


def test_processes_that_are_named_by_text_and_no_marks(tmp_path: Path, reordered: Schedule) -> None:
    path = write(tmp_path, [{**event("span", 500, 20), "pid": "Spans", "tid": "one"}, event("other", 510, 30)], rank=5)
    (measured,) = read_measured_steps([str(path)])
    assert measured.about() == {"trace": path.name, "rank": 5, "step": None, "step_us": 40}
    found = merged((measured,), reordered)
    assert [(e["name"], e["pid"], e["ts"]) for e in found if e["ph"] == "X"] == [("span", 3, 0), ("other", 4, 10)]
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == [
        "rank 5: process Spans (measured)",
        "rank 5: process 7 (measured)",
    ]
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == ["thread one", "thread 1"]


def test_the_step_that_the_profiler_opens_after_the_last_is_none(tmp_path: Path) -> None:
    events = [step(0, 0, 80), event("aten::mm", 10, 20), step(1, 80, 2)]
    (measured,) = read_measured_steps([str(write(tmp_path, events, rank=0))])
    assert (measured.number, measured.us) == (0, 80)
    partial = [step(0, 0, 80), event("aten::mm", 10, 20), step(1, 80, 50), event("aten::mm", 90, 20), step(2, 130, 1)]
    (measured,) = read_measured_steps([str(write(tmp_path, partial, rank=1))])
    assert (measured.number, measured.us) == (1, 50)


def test_the_same_step_of_all_ranks(tmp_path: Path) -> None:
    first = write(tmp_path, [step(1, 0, 10), step(2, 10, 50), step(3, 60, 30)], rank=0)
    second = write(tmp_path, [step(2, 1010, 10), step(3, 1020, 100), step(4, 1120, 20)], rank=1)
    found = read_measured_steps([str(first), str(second)])
    assert [(one.rank, one.number, one.us) for one in found] == [(0, 2, 50), (1, 2, 10)]  # 60 and 130 us in all
    assert [[e["ts"] for e in one.events] for one in found] == [[0], [0]]


def test_a_step_on_the_gpu_is_not_the_hosts(tmp_path: Path) -> None:
    on_gpu = {**step(1, 50, 500), "cat": "gpu_user_annotation"}
    (found,) = read_measured_steps([str(write(tmp_path, [step(1, 0, 10), on_gpu]))])
    assert found.us == 10


def test_recorded_ranks(reordered: Schedule) -> None:
    steps = read_measured_steps([str(path) for path in TRACES])
    found = merged(steps, reordered)
    assert [(one.rank, one.number) for one in steps] == [(0, 1), (1, 1)]
    for pid, one in ((3, steps[0]), (4, steps[1])):
        spans = [e for e in found if e["ph"] == "X" and e["pid"] == pid]
        assert len(spans) == len(one.events) > 1000
        assert min(e["ts"] for e in spans) == 0
        assert max(e["ts"] + e["dur"] for e in spans) <= one.us + 0.001


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (
            [[step(1, 0, 1), step(2, 1, 1)], [event("x", 0, 1)]],
            "the traces share no step: {0} has step 1, step 2; {1} has no marked step. "
            "Profile the same steps on all ranks.",
        ),
        ([[step(1, 0, 1)], []], "{1}: has no event with a duration: nothing was measured."),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, listed: list[list[Event]], said: str) -> None:
    paths = [str(write(tmp_path, events, rank=k)) for k, events in enumerate(listed)]
    with pytest.raises(CostError) as error:
        read_measured_steps(paths)
    assert str(error.value) == said.format(*paths)


def test_limits_hold(tmp_path: Path) -> None:
    with pytest.raises(InputTooLargeError, match="more than 10 bytes"):
        read_measured_steps([str(write(tmp_path, gpu_trace()))], Limits(10, 10))


def odd_events() -> list[Any]:
    """What a file may hold that is no trace of ours: kept out, or made harmless."""
    return [
        {"ph": "X", "name": "no times", "pid": 1, "tid": 1},
        {"ph": "C", "name": "no time", "pid": 1, "tid": 1, "args": {"x": 1}},
        {"ph": "C", "name": "counter", "pid": 1, "tid": 1, "ts": 5, "args": {"x": 1}},
        {"ph": "I", "name": "old mark", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "s", "name": "a", "cat": "a", "id": "0x1", "pid": 7, "tid": 1, "ts": 5},
        {"ph": "f", "name": "a", "cat": "a", "id": "0x1", "pid": 7, "tid": 1, "ts": 5},
        {"ph": "b", "name": "async", "cat": "a", "id": 1, "pid": 7, "tid": 1, "ts": 5},
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 1, "args": "python"},
        event("span", 0, 10),
    ]


def test_odd_events(tmp_path: Path, reordered: Schedule) -> None:
    found = merged(read_measured_steps([str(write(tmp_path, odd_events()))]), reordered)
    assert [(e["ph"], e["name"]) for e in found if e["ph"] != "M"] == [
        ("X", "span"),
        ("C", "counter"),
        ("i", "old mark"),
    ]
