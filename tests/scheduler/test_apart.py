"""Groups that must not be in flight together: by hand, on random problems, and as the judge says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, schedule
from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.together import together, together_violation
from overlap_sched.judge.validate import violation
from overlap_sched.options import Concurrent
from overlap_sched.report.words.together import together_figures, together_text
from overlap_sched.scheduler.apart import clashes, kept_apart, on_one_stream
from overlap_sched.scheduler.best import STALLS
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
@given(problems(), st.sampled_from(["disjoint", "one"]), st.sampled_from(["none", "group", "all"]))
def test_schedules_keep_their_promise(problem: Problem, concurrent: Concurrent, preserve: str) -> None:
    options = Options(concurrent_groups=concurrent, preserve_collective_order=preserve, effort=1, strict=True)  # type: ignore[arg-type]
    made = schedule(problem, replace(options, memory_model=problem.memory_model))
    assert together_violation(problem, made.order, concurrent) is None
    assert made.unrestricted_us is not None


def test_values_that_are_none() -> None:
    with pytest.raises(OptionsError, match=r"^concurrent_groups is 'some'; it is one of 'any', 'disjoint', 'one'\.$"):
        Options(concurrent_groups="some")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"has 2 ranks and lists 3: list each once, from 0 on, or leave ranks out"):
        replace(step(WORLD, ROW), groups={"one": WORLD, "other": ROW._replace(ranks=(0, 1, 2))})
