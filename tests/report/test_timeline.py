"""Who runs when, and what is live of which kind, against the judges."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.peak import KINDS, explain_peak
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.report.timeline import IN_FLIGHT, Span, memory_by_kind, memory_kinds, timeline
from tests.support.graphs import problems
from tests.support.oracle import random_order

REORDERED = (0, 1, 2, 4, 6, 7, 3, 5, 8, 9)


def test_the_example_looks_as_drawn() -> None:
    before, after = (timeline(EXAMPLE, order) for order in (EXAMPLE.original_order, REORDERED))
    assert before.compute == (Span(4, 40, 90), Span(5, 90, 120), Span(6, 120, 150))
    assert before.exposed == (Span(3, 0, 40), Span(8, 150, 190))
    assert before.streams == {"fsdp": (Span(2, 0, 40), Span(7, 150, 190))}
    assert after.compute == (Span(4, 0, 50), Span(6, 50, 80), Span(5, 80, 110))
    assert after.exposed == (Span(8, 110, 120),)
    assert after.streams == {"fsdp": (Span(2, 0, 40), Span(7, 80, 120))}


@given(problems(max_steps=20), st.integers(0, 1000))
def test_sums_are_those_of_the_judges(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    line, run = timeline(problem, order), replay(problem, order)
    assert sum(s.end_us - s.start_us for s in line.exposed) == pytest.approx(run.exposed_us)
    assert line.step_us == run.step_us
    assert [live for _, live in line.memory] == memory_profile(problem, order)


def test_groups_without_collectives_have_no_row_and_no_time_has_no_span(odd: Problem) -> None:
    line = timeline(odd, odd.original_order)
    assert dict(line.streams) == {"h": (), "g $1$": ()}
    assert (line.compute, line.exposed, line.step_us) == ((), (), 0.0)


MIB = 2**20


def test_reductions_of_a_forward_graph_are_of_activations() -> None:
    """No tangents, and a result unlike any parameter: of tensor parallelism. Without parameters nobody can tell."""
    w, *others = EXAMPLE.storages
    for first, reduced in ((w._replace(bytes=2 * MIB), "temporaries"), (w._replace(pinned=False), "gradients")):
        kinds = memory_kinds(replace(EXAMPLE, storages=(first, *others)))
        assert kinds[5:] == (reduced, reduced)
    tangents = replace(
        EXAMPLE, nodes=(EXAMPLE.nodes[0], EXAMPLE.nodes[1]._replace(name="tangents_1"), *EXAMPLE.nodes[2:])
    )
    kinds = memory_kinds(replace(tangents, storages=(w._replace(bytes=2 * MIB), *others)))
    assert kinds[5:] == ("gradients", "gradients")


def test_the_example_as_drawn() -> None:
    found = memory_by_kind(EXAMPLE, EXAMPLE.original_order)
    assert tuple(found) == KINDS
    assert {kind: [live // MIB for live in steps] for kind, steps in found.items() if any(steps)} == {
        "parameters": [1] * 10,
        "saved activations": [4, 4, 4, 4, 4, 4, 4, 0, 0, 0],
        "collectives in flight": [0, 0, 8, 8, 0, 0, 0, 9, 9, 0],
        "gathered parameters": [0, 0, 0, 0, 8, 8, 0, 0, 0, 0],
        "gradients": [0, 0, 0, 0, 0, 0, 8, 0, 0, 1],
        "temporaries": [0, 0, 0, 0, 4, 8, 8, 4, 4, 4],
    }


@given(problems(max_steps=20), st.integers(0, 1000))
def test_kinds_add_up_to_what_is_live(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    found = memory_by_kind(problem, order)
    assert [sum(steps) for steps in zip(*found.values(), strict=True)] == memory_profile(problem, order)
    assert all(live >= 0 for steps in found.values() for live in steps)
    assert IN_FLIGHT not in memory_kinds(problem)


@given(problems(max_steps=20), st.integers(0, 1000))
def test_kinds_are_what_the_peak_says(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    peak = explain_peak(problem, order)
    found, said = memory_by_kind(problem, order), peak.by_kind()
    for kind in ("parameters", "optimizer", "gathered parameters", "gradients", IN_FLIGHT):
        assert found[kind][peak.position] == said[kind]


def a_buffer_used_twice() -> Problem:
    """Two reductions of one buffer in flight at once, then a third one; an activation that waits for a while."""
    kind = Kind
    nodes = [
        Node("made", kind.COMPUTE, (), (0,), ()),
        Node("saved", kind.COMPUTE, (), (4,), ()),
        Node("a", kind.COLLECTIVE, (0,), (1,), (0,), 1.0, "all_reduce", "g"),
        Node("b", kind.COLLECTIVE, (0,), (2,), (0,), 1.0, "all_reduce", "g"),
        Node("wait a", kind.WAIT, (2,), (), (0, 1), collective=2),
        Node("wait b", kind.WAIT, (3,), (), (0, 2), collective=3),
        Node("between", kind.COMPUTE, (5,), (), (0,)),
        Node("c", kind.COLLECTIVE, (6,), (3,), (0,), 1.0, "all_to_all_single", "g"),
        Node("wait c", kind.WAIT, (7,), (), (0, 3), collective=7),
        Node("wait c again", kind.WAIT, (7,), (), (0, 3), collective=7),
        Node("end", kind.COMPUTE, (8, 9), (), (0, 1, 2, 3, 4)),
    ]
    return Problem("twice", tuple(nodes), tuple(Storage(10**k) for k in range(5)), {"g": Group(2, True)})


def test_a_buffer_of_several_collectives_counts_once() -> None:
    problem = a_buffer_used_twice()
    assert memory_kinds(problem) == ("gradients", "gradients", "gradients", "temporaries", "saved activations")
    found = memory_by_kind(problem, problem.original_order)
    assert found[IN_FLIGHT] == [0, 0, 11, 111, 111, 101, 0, 1001, 1001, 1001, 0]
    assert found["gradients"] == [1, 1, 0, 0, 0, 10, 111, 110, 110, 110, 111]
    assert found["temporaries"] == [0] * 10 + [1000]
    assert found["saved activations"] == [0] + [10**4] * 10
    found = memory_by_kind(problem, (0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10))  # the first one's wait comes last
    assert found[IN_FLIGHT][4:7] == [111, 11, 0]


def test_what_a_collective_reads_of_its_caller_is_not_in_flight() -> None:
    kind = Kind
    nodes = (
        Node("weight", kind.INPUT, (), (0,)),
        Node("tangents_1", kind.INPUT, (), (1,)),
        Node("saved", kind.INPUT, (), (2,)),
        Node("reduce", kind.COLLECTIVE, (0, 1, 2), (3,), (0, 1, 2), 1.0, "all_reduce", "g"),
        Node("wait", kind.WAIT, (3,), (), (0, 1, 2, 3), collective=3),
    )
    storages = tuple(Storage(10**k, pinned=k == 0) for k in range(4))
    problem = Problem("inputs", nodes, storages, {"g": Group(2, True)})
    assert memory_kinds(problem) == ("parameters", "gradients", "saved activations", "gradients")
    found = memory_by_kind(problem, problem.original_order)
    assert found[IN_FLIGHT] == [0, 0, 0, 1100, 1100]
    assert (found["parameters"], found["gradients"]) == ([1] * 5, [10] * 5)
    assert found["saved activations"] == [100, 100, 100, 0, 0]
    said = {kind: total for kind, total in explain_peak(problem, problem.original_order).by_kind().items() if total}
    assert said == {"parameters": 1, "gradients": 10, IN_FLIGHT: 1100}
