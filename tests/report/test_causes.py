"""Exposed time by cause: all of it, each microsecond once; and why the original order was kept, word by word."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Options, Schedule, schedule
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.report.words.schedule import causes, explanation, why_no_better
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


def tight(headroom: int = 0, effort: int = 4) -> Schedule:
    """A gather that could hide, if the original order left room for it."""
    nodes = (
        Node("first", Kind.COMPUTE, (), (0,), (), 10.0),
        Node("second", Kind.COMPUTE, (0,), (1,), (0,), 10.0),
        Node("gather", Kind.COLLECTIVE, (), (2,), (), 5.0, "all_gather", "fsdp"),
        Node("wait", Kind.WAIT, (2,), (), (2,), collective=2),
        Node("last", Kind.COMPUTE, (1, 3), (), (1, 2), 10.0),
    )
    storages = (Storage(100), Storage(1), Storage(99))
    return schedule(Problem("tight", nodes, storages, EXAMPLE.groups), Options(headroom=headroom, effort=effort))


def test_why_the_original_order_was_kept() -> None:
    assert why_no_better(tight()) == (
        "no better order was found: 5.0 us stay exposed because an earlier launch would not have fitted into the "
        "memory budget (1 collective)"
    )
    assert tight(headroom=100).scheduled.exposed_us == 0
    assert why_no_better(tight(effort=0)) == "no other order was looked for (effort=0)"
    assert why_no_better(replace(tight(), fell_back="it is broken")) == "it is broken"


def test_nothing_exposed_is_a_reason() -> None:
    alone = schedule(Problem("alone", (Node("mm", Kind.COMPUTE, time_us=1.0),), ()))
    assert (causes(alone), why_no_better(alone)) == ((), "no better order was found: nothing is exposed")
    assert "Nothing is exposed." in explanation(alone)
    by_memory = schedule(alone.problem, Options(base="memory"))
    assert why_no_better(by_memory) == "no order with a clearly lower peak was found"


@pytest.mark.parametrize("first", [Node("view", Kind.COMPUTE), Node("cast", Kind.COMPUTE, (), (2,), (), 1.0)])
def test_what_prepares_a_launch_moves_with_it(first: Node) -> None:
    """A view, or a cast that could run sooner but for the memory of what it makes: it is memory that refuses both."""
    nodes = list(tight().problem.nodes)
    gather = nodes[2]._replace(alloc=(), use=(2,)) if first.alloc else nodes[2]
    nodes[2:] = [
        first,
        gather._replace(deps=(2,)),
        nodes[3]._replace(deps=(3,), collective=3),
        nodes[4]._replace(deps=(1, 4)),
    ]
    problem = replace(tight().problem, nodes=tuple(nodes))
    assert why_no_better(schedule(problem)) == why_no_better(tight())
    assert schedule(problem, Options(headroom="1GiB")).scheduled.exposed_us == 0


def test_what_a_memory_limit_refuses_is_its_doing() -> None:
    kept = replace(tight(headroom=100, effort=0), options=Options(headroom=100), memory_limit_bytes=1)
    assert why_no_better(kept) == (
        "no better order was found: 5.0 us stay exposed because no order with earlier launches was found that runs in "
        "memory_limit (1 collective)"
    )


def test_an_earlier_launch_that_fits_is_not_refused() -> None:
    options = Options(headroom=100)
    roomy = schedule(tight().problem, replace(options, effort=0))
    assert why_no_better(replace(roomy, options=options)) == (
        "no better order was found: 5.0 us stay exposed because an earlier launch was possible, but not chosen "
        "(1 collective)"
    )
