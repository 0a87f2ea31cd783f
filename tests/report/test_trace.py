"""The trace of a schedule: valid by its format, and its numbers are those of the judges."""

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

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Order, Problem, Storage
from overlap_sched.problem.file import read_problem
from overlap_sched.report.colours import PURPOSES, TRACE_COMPUTE, TRACE_EXPOSED
from overlap_sched.report.trace.file import RESERVED, trace_document, write_trace
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.driver import schedule as scheduled
from overlap_sched.simulate.allocator import replay_allocator
from tests.report.conftest import schedule_by_hand
from tests.support.examples import at_night
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, random_order
from tests.support.trace_format import violations

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
    for event in found:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for spans in rows.values():
        for (ts, dur), (after, _) in pairwise(sorted(spans)):
            assert round(1000 * (ts + dur)) <= round(1000 * after)
    for pid, order in orders(schedule):
        run = replay(schedule.problem, order)
        mine = [event for event in found if event["pid"] == pid]
        sums: dict[str, float] = defaultdict(float)
        for event in mine:
            if event["ph"] == "X":
                sums[event["cat"]] += event["dur"]
        slack = 0.001 * len(order)
        assert sums["exposed"] == pytest.approx(run.exposed_us, abs=slack)
        nodes, collectives = schedule.problem.nodes, schedule.problem.collectives
        if not schedule.problem.contention:
            assert sums["collective"] == pytest.approx(sum(nodes[v].time_us for v in collectives), abs=slack)
        end = max(event["ts"] + event["dur"] for event in mine if event["ph"] == "X")
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


def test_colours_are_those_of_the_purpose(reordered: Schedule, tmp_path: Path) -> None:
    found = {e["name"]: e.get("cname") for e in events(reordered, tmp_path) if e["ph"] == "X" and e["pid"] == 2}
    assert (found["mm"], found["exposed: grad"]) == (TRACE_COMPUTE, TRACE_EXPOSED)
    assert found["gather"] == found["scatter"] == PURPOSES["FSDP"].trace
    assert found["wait grad"] is None


def test_arrows_from_launch_over_the_collective_to_the_wait(reordered: Schedule, tmp_path: Path) -> None:
    found = events(reordered, tmp_path)
    parts = [(e["ph"], e["tid"], e["ts"], e["id"]) for e in found if e["ph"] in "stf" and e["pid"] == 2]
    first, second = 2 * 2**32 + 3, 2 * 2**32 + 8
    assert sorted(parts, key=lambda part: (part[3], part[2], "stf".index(part[0]))) == [
        ("s", 2001, 0, first), ("t", 2002, 0, first), ("f", 2001, 80, first),
        ("s", 2001, 80, second), ("t", 2002, 80, second), ("f", 2001, 120, second),
    ]  # fmt: skip


def test_arguments_say_what_and_why(reordered: Schedule, tmp_path: Path) -> None:
    found = {e["name"]: e["args"] for e in events(reordered, tmp_path) if e["ph"] == "X" and e["pid"] == 2}
    assert found["mm"] == {"op": "aten.mm", "flops": 0, "bytes": 0, "id": 4}
    assert found["exposed: grad"] == {"waits_for": "scatter", "id": 8}
    assert found["launch scatter; wait full"] == {"launch": ["scatter"], "wait": ["full"]}
    scatter = found["scatter"]
    assert (scatter["op"], scatter["bytes"], scatter["reason"]) == ("reduce_scatter_tensor", 8 * 2**20, "latest start")
    assert (scatter["position"], scatter["original_position"], scatter["exposed_us"]) == (5, 7, 10.0)
    assert scatter["why"] == "its latest start would have passed while the next compute ran; blocked by nothing"


def test_the_original_says_why_too(reordered: Schedule, tmp_path: Path) -> None:
    found = {e["name"]: e["args"] for e in events(reordered, tmp_path) if e["ph"] == "X" and e["pid"] == 1}
    scatter = found["scatter"]
    assert scatter["why"] == ("where the original order has it; blocked by a dependency: wgrad had to run first")
    assert (scatter["reason"], scatter["held_by"], scatter["held_node"]) == ("original", "dependency", "wgrad")
    assert (scatter["position"], scatter["launch_us"], scatter["exposed_us"]) == (7, 150.0, 40.0)
    assert found["gather"]["why"] == (
        "where the original order has it; blocked by the start of the graph: it was launched at once, and waited for "
        "too soon"
    )


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


def test_fallback_traces_twice_the_same(by_hand: ByHand, tmp_path: Path) -> None:
    found = events(by_hand(EXAMPLE, EXAMPLE.original_order), tmp_path)
    spans = [{(e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["pid"] == p} for p in (1, 2)]
    assert spans[0] == spans[1]


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


def test_what_the_scheduler_returns(tmp_path: Path) -> None:
    schedule = scheduled(EXAMPLE)
    found = events(schedule, tmp_path)
    check(schedule, found)
    assert all(e["args"]["why"] for e in found if e["ph"] == "X" and e["cat"] == "collective")
