"""One rank's order on the graph of another: its launches, within that graph's own budget, never longer than before."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage, schedule
from overlap_sched.errors import ProblemError
from overlap_sched.judge.validate import violation
from overlap_sched.problem.precedence import launched_on
from overlap_sched.scheduler.driver import follow
from overlap_sched.scheduler.restrictions import Proposal, followed
from tests.scheduler.test_pipeline import check_promises
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import large_layers, layers
from tests.support.unlike import unlike

GROUPS = {"fsdp": Group(8, intra_node=True)}


def launches(problem: Problem, order: Sequence[int]) -> list[int]:
    """The launches of an order, each by its place in the original one."""
    place = {v: k for k, v in enumerate(v for v, node in enumerate(problem.nodes) if launched_on(node))}
    return [place[v] for v in order if v in place]


@pytest.mark.slow
@given(
    problems(max_steps=20, models=("runtime",)),
    st.integers(0, 9),
    st.sampled_from((None, "100%")),
    st.sampled_from([0, 3, "50%"]),
)
@examples(300)
def test_promises_hold_and_launches_are_those_proposed(
    problem: Problem, seed: int, memory_limit: str | None, headroom: int | str
) -> None:
    options = Options(memory_model=problem.memory_model, memory_limit=memory_limit, headroom=headroom, strict=True)
    other = unlike(problem, Random(seed), 4, (0, 0.5, -0.5), pad_us=1.0)
    proposal = Proposal.of(other, schedule(other, options).order)
    found = follow(problem, proposal, options)
    if found is not None:
        check_promises(problem, options, found)
        assert launches(problem, found.order) == list(proposal.sequence) == launches(other, proposal.order)
        assert found.short_bytes == 0
    order = followed(problem, proposal)
    if order is not None:
        assert violation(problem, order) is None
        assert launches(problem, order) == list(proposal.sequence)


@given(problems(max_steps=20))
def test_its_own_order_comes_back(problem: Problem) -> None:
    options = Options(memory_model=problem.memory_model)
    made = schedule(problem, options)
    assert followed(problem, Proposal.of(problem, made.order)) == made.order
    again = follow(problem, Proposal.of(problem, made.order), options)
    assert again is not None
    assert (again.order, again.scheduled) == (made.order, made.scheduled)


def swapped(count: int = 8) -> Problem:
    """What is needed last is gathered first."""
    nodes = [Node("w", Kind.INPUT, alloc=(0,))]
    nodes += [
        Node(f"gather {k}", Kind.COLLECTIVE, op="all_gather", time_us=10.0, alloc=(k,), use=(0,), group="fsdp")
        for k in range(count, 0, -1)
    ]
    for k in range(1, count + 1):
        nodes.append(Node(f"wait {k}", Kind.WAIT, use=(k,), collective=count + 1 - k))
        nodes.append(
            Node(f"mm {k}", Kind.COMPUTE, op="mm", time_us=10.0, use=(k,), deps=(len(nodes) - 2, len(nodes) - 1))
        )
    return Problem("swapped", tuple(nodes), (Storage(1, True), *(Storage(8, False) for _ in range(count))), GROUPS)


def test_a_graph_with_other_nodes_gets_what_the_order_gains() -> None:
    options = Options()
    other = unlike(swapped(), Random(1), 3, (0, 0.5, -0.5), pad_us=1.0)
    assert len(other.nodes) > len(swapped().nodes)
    found = follow(other, Proposal.of(swapped(), schedule(swapped(), options).order), options)
    kept = schedule(other, replace(options, preserve_collective_order="all"))
    assert found is not None
    assert found.scheduled.step_us <= 1.05 * schedule(other, options).scheduled.step_us
    assert found.scheduled.step_us < 0.7 * kept.scheduled.step_us
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert "original" not in {decision.reason for decision in found.decisions}


def test_where_it_takes_too_much_less_is_in_flight() -> None:
    """The proposer has room, this rank has none."""
    problem = layers(12)
    roomy = schedule(problem, Options(headroom="100%"))
    assert roomy.scheduled.peak_bytes > roomy.original.peak_bytes
    proposal = Proposal.of(problem, roomy.order)
    found = follow(problem, proposal, Options())
    assert found is not None
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert launches(problem, found.order) == list(proposal.sequence)


def test_with_a_memory_limit_it_runs_there() -> None:
    problem = large_layers(12, 20)
    proposal = Proposal.of(problem, schedule(problem).order)
    assert follow(problem, proposal, Options(memory_limit="100%", allocator="plain")) is None
    roomy = follow(problem, proposal, Options(memory_limit="200%", allocator="plain"))
    assert roomy is not None
    assert launches(problem, roomy.order) == list(proposal.sequence)


def test_what_cannot_be_followed() -> None:
    problem, made = layers(4), schedule(layers(4))
    assert follow(problem, Proposal.of(layers(3), layers(3).original_order)) is None  # fewer launches
    proposal = Proposal.of(problem, made.order)
    backwards = replace(proposal, order=proposal.order[::-1])  # every launch in front of those that it needs
    assert followed(problem, backwards) is None
    assert follow(problem, backwards) is None
    assert follow(problem, proposal, Options(concurrent_groups="one")) is None
    with pytest.raises(ProblemError, match="'tracker' was asked for"):
        follow(problem, proposal, Options(memory_model="tracker"))
