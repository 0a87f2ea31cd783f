"""Groups that must not be in flight together: by hand, on random problems, and as the judge says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage, schedule
from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import together, together_violation, violation
from overlap_sched.options import Concurrent
from overlap_sched.problem.precedence import launched_on
from overlap_sched.report.words.schedule import budget_words, together_figures, together_text
from overlap_sched.scheduler.driver import STALLS
from overlap_sched.scheduler.restrictions import clashes, kept_apart, on_one_stream
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order

WORLD, ROW, COLUMN, UNKNOWN = (
    Group(4, True, ranks=(0, 1, 2, 3)),
    Group(2, True, ranks=(0, 1)),
    Group(2, True, ranks=(0, 2)),
    Group(2, True),
)


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
    assert together_figures(made) == {
        "groups_together": {"original": 0, "scheduled": pairs},
        "concurrent_groups": concurrent,
        "unrestricted_step_us": None if concurrent == "any" else 51.0,
    }


def test_one_at_a_time_holds_for_groups_that_share_one_rank() -> None:
    problem = step(ROW, COLUMN)
    both = schedule(problem, Options(strict=True)).order
    assert together_violation(problem, both, "disjoint") is None
    assert together_violation(problem, both, "one") == (
        "gather (one) is launched while sum (other) is in flight: concurrent_groups='one' keeps them apart"
    )
    apart = schedule(problem, Options(concurrent_groups="one", strict=True)).order
    assert together_violation(problem, apart, "one") is None


def test_what_is_together_originally_may_stay_so() -> None:
    problem = step(WORLD, ROW)
    nodes = [problem.nodes[v] for v in (0, 3, 2, 1, 4, 5, 6)]
    nodes[3] = nodes[3]._replace(deps=(0,), collective=0)
    nodes[4] = nodes[4]._replace(deps=(1,), collective=1)
    nodes[6] = nodes[6]._replace(deps=(3, 4, 5))
    beside = replace(problem, nodes=tuple(nodes))
    made = schedule(beside, Options(concurrent_groups="disjoint", strict=True))
    assert made.original.groups_together == 1
    assert not clashes(beside, "disjoint")(0, 1)
    assert clashes(beside, "disjoint", as_originally=False)(0, 1)
    assert together_violation(beside, beside.original_order, "disjoint") is None
    assert together_violation(beside, beside.original_order, "disjoint", as_originally=False) is not None


def test_the_price_in_words() -> None:
    long = step(WORLD, ROW)
    nodes = [node._replace(time_us=40.0) if node.kind is Kind.COLLECTIVE else node for node in long.nodes]
    problem = replace(long, nodes=tuple(nodes))
    free = schedule(problem)
    assert together_text(free) == (
        "1 pair of collectives of process groups that share more than one rank is in flight together, 0 originally. "
        "Where a backend must not have that: --concurrent-groups disjoint."
    )
    made = schedule(problem, Options(concurrent_groups="disjoint", strict=True))
    assert (free.scheduled.step_us, made.scheduled.step_us) == (51.0, 81.0)
    assert together_text(made) == (
        "To keep process groups apart (disjoint) costs 30.0 us: the step takes 81.0 us, and 51.0 us where all may be "
        "in flight together (+58.8 %)."
    )


def test_waits_that_need_more_than_their_launch_do_not_come_sooner() -> None:
    """The wait of the gather overwrites what the user of the sum reads: it cannot come before the sum's launch."""
    problem = step(WORLD, ROW)
    nodes = [problem.nodes[v] for v in (0, 3, 2, 4, 5, 1, 6)]
    nodes[3] = nodes[3]._replace(deps=(1,), collective=1)
    nodes[5] = nodes[5]._replace(deps=(0, 3), collective=0)
    nodes[6] = nodes[6]._replace(deps=(3, 4, 5))
    tied = replace(problem, nodes=tuple(nodes))
    assert kept_apart(tied, tied.original_order, clashes(tied, "one", as_originally=False)) is None


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
    assert together_violation(problem, order, "disjoint") == (
        said and f"{said}: concurrent_groups='disjoint' keeps them apart"
    )
    assert (together_violation(problem, order, "one") is None) == (groups == ("one",))
    made = schedule(problem, Options(concurrent_groups="disjoint", strict=True, headroom="1GiB"))
    assert together_violation(problem, made.order, "disjoint") is None
    assert (made.scheduled.step_us < 71.0) == (said is None)


def test_what_a_wait_needs_may_communicate_itself() -> None:
    """The wait of the gather needs ``talks``, which must not run beside it: that cannot be had."""
    problem = step(WORLD, ROW)
    nodes = [problem.nodes[v] for v in (0, 2, 1, 3, 4, 5, 6)]
    nodes[1] = nodes[1]._replace(launches=("other",))
    for v, deps, collective in ((2, (0, 1), 0), (4, (3,), 3), (5, (1,), None), (6, (2, 4, 5), None)):
        nodes[v] = nodes[v]._replace(deps=deps, collective=collective)
    tied = replace(problem, nodes=tuple(nodes))
    first = (1, 0, 2, 3, 4, 5, 6)
    assert kept_apart(tied, tied.original_order, clashes(tied, "one", as_originally=False)) is None
    assert kept_apart(tied, first, clashes(tied, "one", as_originally=False)) == first
    assert kept_apart(tied, tied.original_order, clashes(tied, "one")) == tied.original_order


@examples(60)
@given(problems(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(STALLS))
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
    options = Options(
        concurrent_groups=concurrent,
        preserve_collective_order=preserve,
        base=base,
        effort=1,
        strict=True,  # type: ignore[arg-type]
    )
    made = schedule(problem, replace(options, memory_model=problem.memory_model))
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


def test_values_that_are_none() -> None:
    with pytest.raises(OptionsError, match=r"^concurrent_groups is 'some'; it is one of 'any', 'disjoint', 'one'\.$"):
        Options(concurrent_groups="some")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"has 2 ranks and lists 3: list each once, from 0 on, or leave ranks out"):
        replace(step(WORLD, ROW), groups={"one": WORLD, "other": ROW._replace(ranks=(0, 1, 2))})
