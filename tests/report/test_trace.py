"""The trace of a schedule: valid by its format, and its numbers are those of the judges."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Order, Problem, Storage
from overlap_sched.problem.file import read_problem
from overlap_sched.report.trace import BY_KIND, LIVE, RESERVED, trace_document, write_trace
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.simulate.allocator import replay_allocator
from tests.report.conftest import schedule_by_hand
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, random_order
from tests.support.traces import violations

ByHand = Callable[..., Schedule]
Event = dict[str, Any]


def events(schedule: Schedule, original: Problem | None = None) -> list[Event]:
    """What is in the trace; every rule of the format is kept."""
    document = trace_document(schedule, original or schedule.problem)
    assert violations(json.dumps(document, allow_nan=False)) == []
    found: list[Event] = document["traceEvents"]
    return found


def orders(schedule: Schedule) -> tuple[tuple[int, Order], ...]:
    return (1, schedule.problem.original_order), (2, schedule.order)


def check(schedule: Schedule) -> None:
    """Rows add up to the replay, counters' maxima are the peaks, arrows those of the replay."""
    found = events(schedule)
    for pid, order in orders(schedule):
        run = replay(schedule.problem, order)
        mine = [one for one in found if one["pid"] == pid]
        sums: dict[str, float] = defaultdict(float)
        for one in mine:
            if one["ph"] == "X":
                sums[one["cat"]] += one["dur"]
        slack = 0.001 * len(order)
        assert sums["exposed"] == pytest.approx(run.exposed_us, abs=slack)
        took_us = sum(run.finish_us[v] - run.start_us[v] for v in schedule.problem.collectives)
        assert sums["collective"] == pytest.approx(took_us, abs=slack)
        end = max((one["ts"] + one["dur"] for one in mine if one["ph"] == "X"), default=0.0)
        assert end == pytest.approx(run.step_us, abs=0.002)
        peak = max(memory_profile(schedule.problem, order))
        assert max(values["bytes"] for _, values in counter(mine, pid, LIVE)) == peak
        assert max((sum(values.values()) for _, values in counter(mine, pid, BY_KIND)), default=0) == peak
        if reserved := [values["bytes"] for _, values in counter(mine, pid, RESERVED)]:
            assert max(reserved) == replay_allocator(schedule.problem, order).reserved_bytes
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
    write_trace(reordered, tmp_path / "trace.json")
    found = events(reordered)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == found
    check(reordered)
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


def test_arguments_say_what_and_why(reordered: Schedule) -> None:
    found = {e["name"]: e["args"] for e in events(reordered) if e["ph"] == "X" and e["pid"] == 2}
    assert found["mm"] == {"op": "aten.mm", "flops": 0, "bytes": 0, "id": 4}
    assert found["exposed: grad"] == {"waits_for": "scatter", "id": 8}
    assert found["launch scatter; wait full"] == {"launch": ["scatter"], "wait": ["full"]}
    scatter = found["scatter"]
    assert (scatter["op"], scatter["bytes"], scatter["reason"]) == ("reduce_scatter_tensor", 8 * 2**20, "latest start")
    assert (scatter["position"], scatter["original_position"], scatter["exposed_us"]) == (5, 7, 10.0)
    assert scatter["why"] == "its latest start would have passed while the next compute ran; blocked by nothing"


def test_memory_counters_and_the_mark_at_the_peak(reordered: Schedule) -> None:
    found = events(reordered)
    mib = [(ts, values["bytes"] // 2**20) for ts, values in counter(found, 1, LIVE)]
    assert mib == [(0, 13), (40, 17), (90, 21), (150, 14), (190, 6), (190, 6)]
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
    found = events(by_hand(problem, (0, 1, 2)))
    live = [(ts, values["bytes"]) for ts, values in counter(found, 1, LIVE)]
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
    mine = [e for e in events(by_hand(problem, problem.original_order)) if e["pid"] == 1]
    assert arrows(mine) == [(("s", 0), ("f", 10)), (("s", 0), ("t", 0), ("f", 10))]


def test_the_tracker_knows_nothing_of_an_allocator(by_hand: ByHand) -> None:
    problem = replace(EXAMPLE, memory_model="tracker")
    found = events(by_hand(problem, problem.original_order))
    assert {e["name"] for e in found if e["ph"] == "C"} == {LIVE, BY_KIND}


def test_a_problem_that_takes_no_time_and_another_original(by_hand: ByHand, odd: Problem) -> None:
    found = events(by_hand(odd, odd.original_order))
    assert {(e["name"], e["dur"]) for e in found if e["ph"] == "X"} == {("launch a\nb, 漢字; wait earlier", 0)}
    assert [e for e in found if e["ph"] in "stf"] == []
    names = {e["name"] for e in events(by_hand(odd, odd.original_order), EXAMPLE) if e["ph"] == "X" and e["pid"] == 1}
    assert {"mm", "gather", "exposed: grad"} < names


@given(problems(max_steps=20), st.integers(0, 1000))
def test_any_order_of_any_graph(problem: Problem, seed: int) -> None:
    check(schedule_by_hand(problem, tuple(random_order(problem, seed))))


@pytest.mark.slow
def test_a_real_graph(by_hand: ByHand) -> None:
    problem = read_problem(INSTANCES / "llama3_8b_bw_64_2d.json.gz")
    check(by_hand(problem, problem.original_order))
