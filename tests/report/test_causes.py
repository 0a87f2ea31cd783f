"""Exposed time by cause: all of it, each microsecond once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.report.causes import Cause, causes, causes_text
from overlap_sched.report.words.schedule import explanation
from overlap_sched.scheduler.driver import Schedule
from tests.support.examples import Command, examples, run
from tests.support.graphs import problems


@examples(80)
@given(problems(), st.sampled_from([0, 4]), st.booleans())
def test_they_add_up_to_the_exposed_time(problem: Problem, effort: int, contention: bool) -> None:
    if contention:
        problem = replace(problem, contention=Contention({"": 1.5}, dict.fromkeys(problem.groups, "wire")))
    found = schedule(problem, Options(effort=effort, memory_model=problem.memory_model))
    assert sum(cause.exposed_us for cause in causes(found)) == pytest.approx(found.scheduled.exposed_us, rel=1e-9)


def test_the_original_order_of_the_example() -> None:
    kept = schedule(EXAMPLE, Options(effort=0))
    assert causes(kept) == (Cause("start", 40.0, 1), Cause("tail", 40.0, 1))
    assert causes_text(causes(kept)).splitlines() == [
        "Exposed time by cause, and of how many collectives:",
        "  40.0 us  1  what is launched at the start of the graph is waited for too soon",
        "  40.0 us  1  no compute is left at the end of the step to run meanwhile",
    ]


def test_waits_before_and_after_the_last_compute_are_told_apart() -> None:
    """One collective with two results: compute waits for it before its last node, and nothing is left then."""
    nodes = (
        Node("launch", Kind.COLLECTIVE, (), (), (), 10.0, "all_gather", "fsdp"),
        Node("first", Kind.WAIT, (0,), collective=0),
        Node("mm", Kind.COMPUTE, (1,), time_us=5.0),
        Node("reduce", Kind.COLLECTIVE, (2,), (), (), 7.0, "reduce_scatter", "fsdp"),
        Node("last", Kind.WAIT, (3,), collective=3),
    )
    found = causes(schedule(Problem("two", nodes, (), EXAMPLE.groups)))
    assert {(cause.name, cause.exposed_us, cause.collectives) for cause in found} == {
        ("start", 10.0, 1),
        ("tail", 7.0, 1),
    }


def test_nothing_exposed(reordered: Schedule) -> None:
    alone = schedule(Problem("alone", (Node("mm", Kind.COMPUTE, time_us=1.0),), ()))
    assert causes(alone) == ()
    assert "Nothing is exposed." in explanation(alone)


def test_top_says_how_many_are_not_shown(problem: str, cli: Command) -> None:
    def shown(*arguments: str) -> list[str]:
        return cli.out("explain", problem, *arguments).splitlines()

    assert "The 1 most exposed collective of 2 (--all shows every one):" in shown("--top", "1")
    assert "Most exposed first:" in shown("--top", "5")
    assert shown("--all") == shown("--top", "2") == shown()
    totals = shown("--top", "0")
    assert totals[-1].startswith("  ")
    assert not any("exposed first" in line or "gather" in line for line in totals)


def test_as_data(problem: str, cli: Command) -> None:
    found = cli.json("explain", problem, "--top", "1")
    assert sum(cause["exposed_us"] for cause in found["causes"]) == found["exposed_us"] == 40.0
    assert found["collectives"] == 2
    assert [record["name"] for record in found["most_exposed"]] == ["scatter"]
    assert [record["name"] for record in cli.json("explain", problem, "gather")["most_exposed"]] == ["gather"]
    assert run("explain", problem, "gathr", "--json") == 2
