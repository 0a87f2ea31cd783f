import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.trace import write_trace
from overlap_sched.scheduler.result import Schedule
from tests.support.oracle import INSTANCES

ByHand = Callable[..., Schedule]


def events(schedule: Schedule, folder: Path) -> list[dict[str, Any]]:
    write_trace(schedule, folder / "trace.json")
    trace = json.loads((folder / "trace.json").read_text())
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"]["note"].startswith("simulated")
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def check(schedule: Schedule, found: list[dict[str, Any]]) -> None:
    """Rows do not overlap, rows add up to the replay, memory's maximum is the peak."""
    rows = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for spans in rows.values():
        for (ts, dur), (after, _) in pairwise(sorted(spans)):
            assert round(1000 * (ts + dur)) <= round(1000 * after)
    for pid, order in ((1, schedule.problem.original_order), (2, schedule.order)):
        run = replay(schedule.problem, order)
        mine = [event for event in found if event["pid"] == pid]
        sums: dict[str, float] = defaultdict(float)
        for event in mine:
            if event["ph"] == "X":
                sums[event["cat"]] += event["dur"]
        slack = 0.001 * len(order)
        assert sums["exposed"] == pytest.approx(run.exposed_us, abs=slack)
        nodes = schedule.problem.nodes
        assert sums["collective"] == pytest.approx(
            sum(nodes[v].time_us for v in schedule.problem.collectives), abs=slack
        )
        end = max(event["ts"] + event["dur"] for event in mine if event["ph"] == "X")
        assert end == pytest.approx(run.step_us, abs=0.002)
        peak = schedule.original.peak_bytes if pid == 1 else schedule.scheduled.peak_bytes
        assert max(event["args"]["bytes"] for event in mine if event["ph"] == "C") == peak


def test_the_example_event_by_event(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    check(reordered, found)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names == {
        (p, 1000 * p + row): name for p in (1, 2) for row, name in ((0, "compute"), (1, "group fsdp (8 ranks)"))
    }
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == [
        "original (simulated)",
        "scheduled (simulated)",
    ]
    scheduled = {(e["name"], e["tid"]): (e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["pid"] == 2}
    assert scheduled == {
        ("mm", 2000): (0, 50), ("wgrad", 2000): (50, 30), ("dgrad", 2000): (80, 30), ("exposed: grad", 2000): (110, 10),
        ("gather", 2001): (0, 40), ("scatter", 2001): (80, 40),
    }  # fmt: skip


def test_arguments_say_what_and_why(reordered: Schedule, tmp_path: Path) -> None:
    found = {e["name"]: e["args"] for e in events(reordered, tmp_path) if e["ph"] == "X" and e["pid"] == 2}
    assert found["mm"] == {"op": "aten.mm", "flops": 0, "bytes": 0, "id": 4}
    assert found["exposed: grad"] == {"waits_for": "scatter", "id": 8}
    scatter = found["scatter"]
    assert (scatter["op"], scatter["bytes"], scatter["reason"]) == ("reduce_scatter_tensor", 8 * 2**20, "latest start")
    assert (scatter["position"], scatter["original_position"], scatter["exposed_us"]) == (5, 7, 10.0)


def test_memory_samples_and_the_mark_at_the_peak(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    mib = [(e["ts"], e["args"]["bytes"] // 2**20) for e in found if e["ph"] == "C" and e["pid"] == 1]
    assert mib == [(0, 13), (40, 17), (90, 21), (120, 21), (150, 14), (190, 6)]
    assert [(e["name"], e["ts"]) for e in found if e["ph"] == "i"] == [
        ("peak memory 21.0 MiB", 90),
        ("peak memory 26.0 MiB", 80),
    ]


def test_a_problem_that_takes_no_time(by_hand: ByHand, odd: Problem, tmp_path: Path) -> None:
    found = events(by_hand(odd, odd.original_order), tmp_path)
    assert [e for e in found if e["ph"] == "X"] == []


def test_fallback_traces_twice_the_same(by_hand: ByHand, tmp_path: Path) -> None:
    found = events(by_hand(EXAMPLE, EXAMPLE.original_order), tmp_path)
    spans = [{(e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["pid"] == p} for p in (1, 2)]
    assert spans[0] == spans[1]


@pytest.mark.parametrize("name", ["llama3_8b_bw_64_2d", "dsv3_bw_64"])
def test_real_graphs(by_hand: ByHand, name: str, tmp_path: Path) -> None:
    problem = read_problem(INSTANCES / f"{name}.json.gz")
    schedule = by_hand(problem, problem.original_order)
    check(schedule, events(schedule, tmp_path))
