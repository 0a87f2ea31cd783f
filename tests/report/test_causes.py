"""Exposed time by cause: all of it, each microsecond once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.report.words.schedule import causes, explanation
from overlap_sched.scheduler.driver import Schedule
from tests.support.examples import examples
from tests.support.graphs import problems


@examples(80)
@given(problems(), st.sampled_from([0, 4]), st.booleans())
def test_they_add_up_to_the_exposed_time(problem: Problem, effort: int, contention: bool) -> None:
    if contention:
        problem = replace(problem, contention=Contention({"": 1.5}, dict.fromkeys(problem.groups, "wire")))
    found = schedule(problem, Options(effort=effort, memory_model=problem.memory_model))
    assert sum(cause.exposed_us for cause in causes(found)) == pytest.approx(found.scheduled.exposed_us, rel=1e-9)


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
