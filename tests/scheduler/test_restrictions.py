"""Orders under restrictions: groups apart, a device's memory, another rank's launches."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Group, Kind, Node, Options, Problem, Schedule, Storage, schedule
from overlap_sched.errors import ProblemError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import together, together_violation, violation
from overlap_sched.options import Concurrent
from overlap_sched.problem.precedence import launched_on
from overlap_sched.problem.sizes import EXPANDABLE, MIB, PLAIN, AllocatorSettings
from overlap_sched.report.answers import BeforeAfter, plan_answer
from overlap_sched.report.words.schedule import budget_words, short_text
from overlap_sched.scheduler import restrictions as under_test
from overlap_sched.scheduler.driver import follow
from overlap_sched.scheduler.restrictions import (
    DeviceLimit,
    Proposal,
    clashes,
    followed,
    kept_apart,
    needed_bytes,
    on_one_stream,
)
from overlap_sched.scheduler.task import TUNING, Task
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges
from tests.scheduler.test_driver import check_promises
from tests.simulate.test_allocator import with_sizes_of_all_kinds
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import large_layers, layers, unlike
from tests.support.oracle import random_order

WORLD, UNKNOWN = Group(4, True, ranks=(0, 1, 2, 3)), Group(2, True)
ROW, COLUMN = (Group(2, True, ranks=(0, other)) for other in (1, 2))


def step(first: Group, second: Group) -> Problem:
    """A gather and a sum of two groups, each with its user; products that hide both."""
    nodes = (
        Node("gather", Kind.COLLECTIVE, (), time_us=20.0, op="all_gather", group="one"),
        Node("full", Kind.WAIT, (0,), collective=0),
        Node("mm", Kind.COMPUTE, (), time_us=25.0),
        Node("sum", Kind.COLLECTIVE, (), time_us=20.0, op="all_reduce", group="other"),
        Node("summed", Kind.WAIT, (3,), collective=3),
        Node("mm_1", Kind.COMPUTE, (2,), time_us=25.0),
        Node("last", Kind.COMPUTE, (1, 4, 5), time_us=1.0),
    )
    return Problem("step", nodes, (), {"one": first, "other": second})


@pytest.mark.parametrize(
    ("first", "second", "concurrent", "pairs"),
    [
        (WORLD, ROW, "any", 1),
        (WORLD, ROW, "disjoint", 0),
        (WORLD, UNKNOWN, "disjoint", 0),
        (ROW, COLUMN, "disjoint", 0),  # they share rank 0 alone: no pair that counts
        (WORLD, ROW, "one", 0),
    ],
)
def test_the_figure_and_the_option(first: Group, second: Group, concurrent: Concurrent, pairs: int) -> None:
    made = schedule(step(first, second), Options(concurrent_groups=concurrent, strict=True))
    assert (made.original.groups_together, made.scheduled.groups_together) == (0, pairs)
    assert made.scheduled.step_us == 51.0  # both hide one after the other, too
    answer = plan_answer(made, None, None)
    assert answer.groups_together == BeforeAfter(0, pairs)
    assert answer.concurrent_groups == concurrent
    assert answer.unrestricted_us == (None if concurrent == "any" else 51.0)


def test_groups_that_share_through_others_are_on_one_stream() -> None:
    problem = replace(step(ROW, COLUMN), groups={"one": ROW, "world": WORLD, "other": COLUMN})
    assert {node.group for node in on_one_stream(problem, "disjoint").nodes} == {None, "one"}
    assert on_one_stream(step(ROW, COLUMN), "disjoint") == step(ROW, COLUMN)


def talking(problem: Problem, groups: Sequence[str] = ("g0", "g1", "*")) -> Problem:
    """Every other compute node communicates itself, on a group in turn; ``"*"``: on one that is not known."""
    timed = [v for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE and node.time_us][::2]
    on = {v: (groups[i % len(groups)],) for i, v in enumerate(timed)}
    return replace(problem, nodes=tuple(n._replace(launches=on.get(v, ())) for v, n in enumerate(problem.nodes)))


def meetings(problem: Problem, order: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs of launches of unlike groups, the second while the first is in flight, by the definition."""
    at = {v: i for i, v in enumerate(order)}
    ends = {u: min(at[w] for w in waits) for u, waits in problem.waits.items()}
    on = {v: {*launched_on(node)} for v, node in enumerate(problem.nodes) if launched_on(node)}
    return {
        (u, v)
        for u in problem.collectives
        for v in on
        if at[u] < at[v] < ends.get(u, len(order)) and (on[u] != on[v] or "*" in on[v])
    }


@examples(100)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_judge_and_the_scheduler_keep_apart_what_communicates_itself(problem: Problem, seed: int) -> None:
    problem = talking(problem)
    order, originally = random_order(problem, seed), meetings(problem, problem.original_order)
    either = originally | {(v, u) for u, v in originally}
    for as_originally, allowed in ((True, either), (False, set())):
        clash, broken = clashes(problem, "one", as_originally), meetings(problem, order) - allowed
        assert (together_violation(problem, order, "one", as_originally) is None) == (not broken)
        assert all(clash(u, v) for u, v in broken)
        made = kept_apart(problem, order, clash)
        if made is not None:
            assert violation(problem, made) is None
            assert not meetings(problem, made) - allowed


@pytest.mark.parametrize(
    ("groups", "pairs", "said"),
    [
        (("one",), 0, None),
        (("other",), 1, "mm (other) communicates while gather (one) is in flight"),
        (("one", "other", "other"), 1, "mm (one, other) communicates while gather (one) is in flight"),
        (("*",), 0, "mm (*) communicates while gather (one) is in flight"),
        (("elsewhere",), 1, "mm (elsewhere) communicates while gather (one) is in flight"),
        (("far",), 0, None),
    ],
)
def test_what_communicates_itself_beside_a_collective(groups: tuple[str, ...], pairs: int, said: str | None) -> None:
    """The figure counts what is known to communicate; the judge looks at what may, too. ``far`` shares no rank."""
    problem = step(WORLD, ROW)
    nodes = [problem.nodes[v] for v in (2, 0, 1, 5, 3, 4, 6)]
    nodes[0] = nodes[0]._replace(launches=groups)
    for v, deps, collective in ((2, (1,), 1), (3, (0,), None), (5, (4,), 4), (6, (2, 3, 5), None)):
        nodes[v] = nodes[v]._replace(deps=deps, collective=collective)
    there = problem.groups | {"far": Group(2, True, ranks=(6, 7))}
    problem = replace(problem, nodes=tuple(nodes), groups=there)
    order = (1, 0, 2, 3, 4, 5, 6)
    assert together(problem, replay(problem, order)) == pairs
    whole = said and f"{said}: concurrent_groups='disjoint' keeps them apart"
    assert together_violation(problem, order, "disjoint") == whole
    assert (together_violation(problem, order, "one") is None) == (groups == ("one",))
    made = schedule(problem, Options(concurrent_groups="disjoint", strict=True, headroom="1GiB"))
    assert together_violation(problem, made.order, "disjoint") is None
    assert (made.scheduled.step_us < 71.0) == (said is None)


@examples(60)
@given(problems(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(TUNING.apart_stalls))
def test_orders_kept_apart_are_valid_hold_no_more_memory_and_satisfy_the_judge(
    problem: Problem, seed: int, defers: bool, stalls: float
) -> None:
    order = random_order(problem, seed)
    made = kept_apart(problem, order, clashes(problem, "one", as_originally=False), defers, stalls)
    if made is not None:
        assert violation(problem, made) is None
        assert together_violation(problem, made, "one", as_originally=False) is None
        assert together(problem, replay(problem, made)) == 0
        if not defers:
            launches = [v for v in order if v in problem.collectives]
            assert [v for v in made if v in problem.collectives] == launches


@examples(30)
@given(
    problems(),
    st.sampled_from(["disjoint", "one"]),
    st.sampled_from(["none", "group", "all"]),
    st.sampled_from(["original", "memory", "memory-peak"]),
    st.booleans(),
)
def test_schedules_keep_their_promise(
    problem: Problem, concurrent: Concurrent, preserve: str, base: str, talks: bool
) -> None:
    problem = talking(problem) if talks else problem
    asked: dict[str, Any] = {"preserve_collective_order": preserve, "base": base, "memory_model": problem.memory_model}
    made = schedule(problem, Options(concurrent_groups=concurrent, effort=1, strict=True, **asked))
    assert together_violation(problem, made.order, concurrent) is None
    assert made.unrestricted_us is not None
    assert made.scheduled.peak_bytes <= made.budget_bytes


@pytest.mark.parametrize(("concurrent", "budget_bytes"), [("any", 30), ("one", 40)])
def test_where_groups_cannot_be_kept_apart_within_the_lowest_peak_the_budget_is_the_original_peak(
    concurrent: Concurrent, budget_bytes: int
) -> None:
    """Nothing waits for `put`: launched first it frees what it reads, but is in flight with `gather`."""
    nodes = (
        Node("make", Kind.COMPUTE, (), (0,), time_us=1.0),
        Node("part", Kind.COMPUTE, (0,), (1,), (0,), time_us=1.0),
        Node("gather", Kind.COLLECTIVE, (0,), (2,), (), 9.0, "all_gather", "one"),
        Node("full", Kind.WAIT, (2,), (), (2,), collective=2),
        Node("put", Kind.COLLECTIVE, (1,), (), (1,), 5.0, "broadcast", "other"),
        Node("output", Kind.OUTPUT, (3, 4), (), (2,)),
    )
    problem = Problem("tight", nodes, (Storage(10), Storage(20), Storage(20)), {"one": WORLD, "other": ROW})
    made = schedule(problem, Options(base="memory-peak", concurrent_groups=concurrent, strict=True))
    assert (made.scheduled.peak_bytes, made.budget_bytes) == (budget_bytes, budget_bytes)
    words = "the original peak" if concurrent == "one" else "the lowest peak found"
    assert budget_words(made) == f"{words} plus 0 B"


SETTINGS = {"plain": PLAIN, "expandable": EXPANDABLE, "none": None}


def runs_in(found: Schedule, limit_bytes: int, settings: AllocatorSettings | None) -> bool:
    """By definition."""
    if found.scheduled.peak_bytes > limit_bytes or settings is None:
        return found.scheduled.peak_bytes <= limit_bytes
    return requests_of(LiveRanges(found.problem), found.order).fits(limit_bytes, settings)


@given(
    problems(models=("runtime",), max_steps=20), st.sampled_from([*SETTINGS]), st.integers(50, 130), st.integers(0, 2)
)
def test_every_promise_is_kept(problem: Problem, allocator: str, percent: int, effort: int) -> None:
    problem, settings = with_sizes_of_all_kinds(problem), SETTINGS[allocator]
    found = schedule(problem, Options(memory_limit=f"{percent}%", allocator=allocator, effort=effort, strict=True))
    assert violation(problem, found.order) is None
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert found.scheduled.step_us <= found.original.step_us * (1 + 1e-9)
    needed = needed_bytes(LiveRanges(problem), problem.original_order, settings)
    assert found.memory_limit_bytes == needed * percent // 100
    assert runs_in(found, found.memory_limit_bytes, settings) == (found.short_bytes == 0)
    assert runs_in(found, found.memory_limit_bytes + found.short_bytes, settings)
    assert percent < 100 or not found.short_bytes  # the original order runs there


@pytest.mark.parametrize("allocator", ["plain", "expandable"])
@pytest.mark.parametrize("slower", [1, 3])
def test_what_does_not_run_is_exchanged_for_the_shortest_that_does(allocator: str, slower: int) -> None:
    problem, settings = large_layers(24, 20).with_comm_scale(slower), SETTINGS[allocator]
    assert settings is not None
    free = schedule(problem)
    found = schedule(problem, Options(memory_limit="100%", allocator=allocator))
    limit_bytes = found.memory_limit_bytes
    assert limit_bytes is not None
    assert not runs_in(free, limit_bytes, settings)
    assert runs_in(found, limit_bytes, settings)
    assert free.scheduled.step_us < found.scheduled.step_us < found.original.step_us
    roomy = schedule(problem, Options(memory_limit=2**50, allocator=allocator))
    assert (roomy.order, roomy.short_bytes) == (free.order, 0)


def test_where_nothing_runs_the_best_says_what_it_is_short() -> None:
    problem = large_layers(8, 20)
    found = schedule(problem, Options(memory_limit=100 * MIB, allocator="plain"))
    assert found.order == schedule(problem).order
    needed = needed_bytes(LiveRanges(problem), found.order, PLAIN)
    assert found.short_bytes == needed - 100 * MIB
    assert "runs in the memory_limit of 100.0 MiB: this one needs " in short_text(found)
    assert short_text(schedule(problem)) == ""


def test_the_original_order_is_taken_where_it_alone_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = large_layers(12, 20)
    monkeypatch.setattr(under_test, "TUNING", replace(TUNING, budget_parts=()))
    found = schedule(problem, Options(memory_limit="100%", allocator="plain"))
    assert (found.order, found.short_bytes) == (problem.original_order, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"memory_limit": "40GiB"}, DeviceLimit(40 * 2**30, PLAIN)),
        ({"memory_limit": 7000, "allocator": "expandable"}, DeviceLimit(7000, EXPANDABLE)),
        ({"memory_limit": 7000, "allocator": "none"}, DeviceLimit(7000, None)),
        ({"memory_limit": "50%", "allocator": "none"}, DeviceLimit(21 * MIB // 2, None)),  # of the live peak
        ({"memory_limit": "50%"}, DeviceLimit(11 * MIB, PLAIN)),  # of the smallest device
        ({}, None),
    ],
)
def test_what_a_limit_means(
    options: dict[str, Any], expected: DeviceLimit | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert DeviceLimit.of(Task(EXAMPLE, Options(**options), 21 * MIB)) == expected


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


def test_a_graph_with_other_nodes_gets_what_the_order_gains() -> None:
    problem, options = layers(12), Options(headroom=8)
    other = unlike(problem, Random(1), 3, (0, 0.5, -0.5), pad_us=1.0)
    assert len(other.nodes) > len(problem.nodes)
    found = follow(other, Proposal.of(problem, schedule(problem, options).order), options)
    assert found is not None
    assert found.scheduled.step_us <= 1.05 * schedule(other, options).scheduled.step_us
    assert found.scheduled.step_us < 0.7 * found.original.step_us
    assert found.scheduled.peak_bytes <= found.original.peak_bytes + 8
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
