"""The trace of a schedule, with measured steps beside it: valid by its format, its numbers are those of the judges."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import CostError, InputTooLargeError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Order, Problem, Storage
from overlap_sched.problem.file import Limits, read_problem
from overlap_sched.report.trace import RESERVED, MeasuredStep, read_measured_steps, trace_document, write_trace
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.simulate.allocator import replay_allocator
from tests.report.conftest import schedule_by_hand
from tests.support.examples import at_night
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, random_order
from tests.support.traces import TRACES, event, kernel, launch, step, violations, write

ByHand = Callable[..., Schedule]
Event = dict[str, Any]


def events(schedule: Schedule, folder: Path) -> list[Event]:
    write_trace(schedule, folder / "trace.json")
    text = (folder / "trace.json").read_text()
    assert violations(text) == []
    trace = json.loads(text)
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"]["note"] == (
        "original and scheduled: simulated, replay of one compute stream and one stream per process group"
    )
    found: list[Event] = trace["traceEvents"]
    return found


def orders(schedule: Schedule) -> tuple[tuple[int, Order], ...]:
    return (1, schedule.problem.original_order), (2, schedule.order)


def check(schedule: Schedule, found: list[Event]) -> None:
    """Rows do not overlap, rows add up to the replay, counters' maxima are the peaks, arrows those of the replay."""
    rows = defaultdict(list)
    for one in found:
        if one["ph"] == "X":
            rows[one["pid"], one["tid"]].append((one["ts"], one["dur"]))
    for spans in rows.values():
        for (ts, dur), (after, _) in pairwise(sorted(spans)):
            assert round(1000 * (ts + dur)) <= round(1000 * after)
    for pid, order in orders(schedule):
        run = replay(schedule.problem, order)
        mine = [one for one in found if one["pid"] == pid]
        sums: dict[str, float] = defaultdict(float)
        for one in mine:
            if one["ph"] == "X":
                sums[one["cat"]] += one["dur"]
        slack = 0.001 * len(order)
        assert sums["exposed"] == pytest.approx(run.exposed_us, abs=slack)
        nodes, collectives = schedule.problem.nodes, schedule.problem.collectives
        if not schedule.problem.contention:
            assert sums["collective"] == pytest.approx(sum(nodes[v].time_us for v in collectives), abs=slack)
        end = max(one["ts"] + one["dur"] for one in mine if one["ph"] == "X")
        assert end == pytest.approx(run.step_us, abs=0.002)
        peak = schedule.original.peak_bytes if pid == 1 else schedule.scheduled.peak_bytes
        assert max(values["bytes"] for _, values in counter(mine, pid, "memory: live")) == peak
        assert max(sum(values.values()) for _, values in counter(mine, pid, "memory: live, by kind")) == peak
        assert arrows(mine) == arrows_of(schedule.problem, order)


def counter(found: list[Event], pid: int, name: str) -> list[tuple[float, dict[str, int]]]:
    return [(e["ts"], e["args"]) for e in found if (e["ph"], e["pid"], e["name"]) == ("C", pid, name)]


def arrows(found: list[Event]) -> list[tuple[tuple[str, float], ...]]:
    """Each arrow as what it goes through, and when."""
    parts: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for e in found:
        if e["ph"] in "stf":
            parts[e["id"]].append((e["ph"], e["ts"]))
    return sorted(tuple(sorted(part, key=lambda point: "stf".index(point[0]))) for part in parts.values())


def arrows_of(problem: Problem, order: Order) -> list[tuple[tuple[str, float], ...]]:
    """The same by definition: launch, start on the stream, end of the wait, or start where nothing waits."""
    run = replay(problem, order)
    found = []
    for v in problem.collectives:
        began, start, done = (round(us, 3) for us in (run.at_us[v], run.start_us[v], run.finish_us[v]))
        waits = [w for w, node in enumerate(problem.nodes) if node.collective == v]
        for w in waits:
            end = round(run.finish_us[w], 3)
            if began < end:
                found.append((("s", began), *((("t", start),) if start < done else ()), ("f", end)))
        if not waits and began < done and start < done:
            found.append((("s", began), ("f", start)))
    return sorted(found)


def test_the_example_event_by_event(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    check(reordered, found)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    rows = ((0, "compute"), (1, "launches and waits"), (2, "fsdp (8 ranks)"))
    assert names == {(p, 1000 * p + row): name for p in (1, 2) for row, name in rows}
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == [
        "original (simulated)",
        "scheduled (simulated)",
    ]
    shown = {(e["name"], e["tid"]): (e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["pid"] == 2}
    assert shown == {
        ("mm", 2000): (0, 50), ("wgrad", 2000): (50, 30), ("dgrad", 2000): (80, 30), ("exposed: grad", 2000): (110, 10),
        ("launch gather", 2001): (0, 0), ("launch scatter; wait full", 2001): (80, 0), ("wait grad", 2001): (120, 0),
        ("gather", 2002): (0, 40), ("scatter", 2002): (80, 40),
    }  # fmt: skip


def test_arguments_say_what_and_why(reordered: Schedule, tmp_path: Path) -> None:
    found = {e["name"]: e["args"] for e in events(reordered, tmp_path) if e["ph"] == "X" and e["pid"] == 2}
    assert found["mm"] == {"op": "aten.mm", "flops": 0, "bytes": 0, "id": 4}
    assert found["exposed: grad"] == {"waits_for": "scatter", "id": 8}
    assert found["launch scatter; wait full"] == {"launch": ["scatter"], "wait": ["full"]}
    scatter = found["scatter"]
    assert (scatter["op"], scatter["bytes"], scatter["reason"]) == ("reduce_scatter_tensor", 8 * 2**20, "latest start")
    assert (scatter["position"], scatter["original_position"], scatter["exposed_us"]) == (5, 7, 10.0)
    assert scatter["why"] == "its latest start would have passed while the next compute ran; blocked by nothing"


def test_memory_counters_and_the_mark_at_the_peak(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    mib = [(ts, values["bytes"] // 2**20) for ts, values in counter(found, 1, "memory: live")]
    assert mib == [(0, 13), (40, 17), (90, 21), (150, 14), (190, 6), (190, 6)]
    kinds = {
        ts: {k: v // 2**20 for k, v in values.items()} for ts, values in counter(found, 1, "memory: live, by kind")
    }
    none = dict.fromkeys(kinds[0], 0)
    assert "optimizer" not in none  # there is none in this graph
    assert kinds == {
        0: none | {"parameters": 1, "saved activations": 4, "collectives in flight": 8},
        40: none | {"parameters": 1, "saved activations": 4, "gathered parameters": 8, "temporaries": 4},
        90: none | {"parameters": 1, "saved activations": 4, "gathered parameters": 8, "temporaries": 8},
        120: none | {"parameters": 1, "saved activations": 4, "gradients": 8, "temporaries": 8},
        150: none | {"parameters": 1, "collectives in flight": 9, "temporaries": 4},
        190: none | {"parameters": 1, "gradients": 1, "temporaries": 4},
    }
    assert [(e["name"], e["ts"]) for e in found if e["ph"] == "i"] == [
        ("peak memory 21.0 MiB", 90),
        ("peak memory 26.0 MiB", 80),
    ]


def test_of_one_instant_the_most_and_what_stays(by_hand: ByHand) -> None:
    kind = Kind
    nodes = (
        Node("large", kind.COMPUTE, (), (0,)),
        Node("gone", kind.COMPUTE, (0,), (1,), (0,)),
        Node("long", kind.COMPUTE, (1,), (), (1,), 10.0),
    )
    problem = Problem("instant", nodes, (Storage(100), Storage(1)))
    found = trace_document(by_hand(problem, (0, 1, 2)), problem)["traceEvents"]
    live = [(ts, values["bytes"]) for ts, values in counter(found, 1, "memory: live")]
    assert live == [(0, 101), (0, 1), (10, 1)]
    assert [e["ts"] for e in found if e["ph"] == "i"] == [0, 0]


def test_collectives_shorter_than_a_nanosecond(by_hand: ByHand) -> None:
    kind = Kind
    nodes = (
        Node("long", kind.COLLECTIVE, (), (0,), (), 10.0, "all_gather", "g"),
        Node("short", kind.COLLECTIVE, (), (1,), (), 1e-5, "all_gather", "g"),
        Node("nobody waits", kind.COLLECTIVE, (), (2,), (), 1e-5, "all_gather", "g"),
        Node("wait", kind.WAIT, (1,), (), (1,), collective=1),
        Node("wait long", kind.WAIT, (0,), (), (0,), collective=0),
    )
    problem = Problem("short", nodes, (Storage(1),) * 3, {"g": Group(2, True)})
    document = trace_document(by_hand(problem, problem.original_order), problem)
    assert violations(json.dumps(document)) == []
    mine = [e for e in document["traceEvents"] if e["pid"] == 1]
    assert arrows(mine) == [(("s", 0), ("f", 10)), (("s", 0), ("t", 0), ("f", 10))]


def test_reserved_is_what_the_allocator_replays(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    assert counter(found, 1, RESERVED) == [(ts, {"bytes": 22 * 2**20}) for ts in (0, 190)]
    for pid, order in orders(reordered):
        values = [values["bytes"] for _, values in counter(found, pid, RESERVED)]
        assert max(values) == replay_allocator(EXAMPLE, order).reserved_bytes


def test_the_tracker_knows_nothing_of_an_allocator(by_hand: ByHand) -> None:
    problem = replace(EXAMPLE, memory_model="tracker")
    document = trace_document(by_hand(problem, problem.original_order), problem)
    assert {e["name"] for e in document["traceEvents"] if e["ph"] == "C"} == {"memory: live", "memory: live, by kind"}


def test_a_problem_that_takes_no_time(by_hand: ByHand, odd: Problem, tmp_path: Path) -> None:
    found = events(by_hand(odd, odd.original_order), tmp_path)
    assert {(e["name"], e["dur"]) for e in found if e["ph"] == "X"} == {("launch a\nb, 漢字; wait earlier", 0)}
    assert [e for e in found if e["ph"] in "stf"] == []


def test_a_rewritten_graph_stands_under_the_one_that_it_was(by_hand: ByHand, odd: Problem) -> None:
    document = trace_document(by_hand(odd, odd.original_order), EXAMPLE)
    names = {e["name"] for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == 1}
    assert {"mm", "gather", "exposed: grad"} < names


@given(problems(max_steps=20), st.integers(0, 1000))
def test_any_order_of_any_graph(problem: Problem, seed: int) -> None:
    schedule = schedule_by_hand(problem, tuple(random_order(problem, seed)))
    document = trace_document(schedule, problem)
    assert violations(json.dumps(document, allow_nan=False)) == []
    found = document["traceEvents"]
    for pid, order in orders(schedule):
        mine = [e for e in found if e["pid"] == pid]
        assert arrows(mine) == arrows_of(problem, order)
        assert max(values["bytes"] for _, values in counter(mine, pid, "memory: live")) == max(
            memory_profile(problem, order)
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3_8b_bw_64_2d", at_night("dsv3_bw_64")])
def test_real_graphs(by_hand: ByHand, name: str, tmp_path: Path) -> None:
    problem = read_problem(INSTANCES / f"{name}.json.gz")
    schedule = by_hand(problem, problem.original_order)
    check(schedule, events(schedule, tmp_path))


def meta(of: str, pid: int | str, tid: int | str, **args: object) -> Event:
    return {"ph": "M", "name": of, "pid": pid, "tid": tid, "ts": 0, "args": args}


def flow(phase: str, ts: float, id_: int, pid: int | str, tid: int | str) -> Event:
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
        flow("s", 1015, 41, 7, 1),
        flow("f", 1120, 41, 0, 4),
        flow("s", 1115, 42, 7, 1),
        flow("f", 1195, 42, 0, 4),
        flow("s", 1115, 43, 7, 1),  # without an end
        flow("s", 1115, 44, 7, 1),
        flow("f", 1250, 44, 0, 4),  # to nothing
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
