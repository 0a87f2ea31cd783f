"""Contention: replay and bound against an exact simulation, a drawn example, and none at all."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import ProblemError
from overlap_sched.judge.lower_bound import lower_bound_us, parts_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import all_orders, contended_step, random_order

FACTORS = st.sampled_from((1.0, 1.25, 1.5, 3.0))
KINDS = st.sampled_from(("", "all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all"))
by_kind = st.dictionaries(KINDS, FACTORS)
both_ways = st.dictionaries(KINDS, st.sampled_from((0.125, 0.5, 0.75, 1.0, 1.5, 3.0)))
contentions = st.builds(
    Contention,
    by_kind,
    st.dictionaries(st.sampled_from(("g0", "g1", "g2")), st.sampled_from(("nvlink", "rail"))),
    both_ways,
    shares=st.dictionaries(st.sampled_from(("flops", "bytes")), st.sampled_from((0.0, 0.5, 1.0, 2.0))),
    flops_per_byte=st.just(2.0),
)
with_lanes = st.builds(
    lambda contention, lanes, share: replace(contention, lanes=lanes, crowding=1.0 + (lanes - 1) * share),
    contentions,
    st.sampled_from((1, 2, 3)),
    st.sampled_from((0.0, 0.25, 0.5, 1.0)),
)


def contended(problem: Problem, contention: Contention) -> Problem:
    """Every third node is bound by its FLOPs, every third by its bytes, of the others nothing is known."""
    links = {name: link for name, link in contention.links.items() if name in problem.groups}
    work = ((0, 0), (6, 3), (5, 3))
    nodes = (node._replace(flops=work[v % 3][0], bytes=work[v % 3][1]) for v, node in enumerate(problem.nodes))
    return replace(problem, nodes=tuple(nodes), contention=replace(contention, links=links))


@pytest.mark.slow
@given(problems(), with_lanes)
@examples(200)
def test_replay_is_the_exact_simulation(problem: Problem, contention: Contention) -> None:
    problem = contended(problem, contention)
    for seed in range(3):
        order = random_order(problem, seed)
        timeline, exact = replay(problem, order), contended_step(problem, order)
        assert timeline.step_us == pytest.approx(float(exact.step_us), rel=1e-9)
        assert timeline.exposed_us == pytest.approx(float(exact.exposed_us), rel=1e-9, abs=1e-3)
        assert timeline.finish_us == pytest.approx([float(exact.finish_us[v]) for v in range(len(order))], rel=1e-9)


@given(problems())
def test_without_contention_not_a_bit_changes(problem: Problem) -> None:
    none = Contention({"": 1.0}, dict.fromkeys(list(problem.groups)[:1], "nvlink"))
    assert not none
    for seed in range(2):
        order = random_order(problem, seed)
        assert replay(replace(problem, contention=none), order) == replay(problem, order)
    assert lower_bound_us(replace(problem, contention=none)) == lower_bound_us(problem)


@given(problems(max_steps=6), st.one_of(st.just(NO_CONTENTION), with_lanes))
@examples(120)
def test_no_order_beats_the_bound(problem: Problem, contention: Contention) -> None:
    if len(problem.nodes) > 8:
        return
    problem = contended(problem, contention)
    optimum = min(replay(problem, order).step_us for order in all_orders(problem))
    assert lower_bound_us(problem) <= optimum * (1 + 1e-9)


def two_groups() -> Problem:
    nodes = (
        Node("gather", Kind.COLLECTIVE, time_us=40.0, op="all_gather_into_tensor", group="fsdp"),
        Node("before", Kind.COMPUTE, time_us=10.0),
        Node("exchange", Kind.COLLECTIVE, time_us=20.0, op="all_to_all_single", group="ep"),
        Node("beside", Kind.COMPUTE, time_us=30.0),
        Node("wait", Kind.WAIT, collective=0),
        Node("after", Kind.COMPUTE, time_us=10.0),
    )
    return Problem("two groups", nodes, (), {"fsdp": Group(64, False), "ep": Group(8, False)})


def test_the_drawn_example_two_groups_share_a_link() -> None:
    problem = replace(two_groups(), contention=Contention(links={"fsdp": "rail", "ep": "rail"}))
    timeline = replay(problem, problem.original_order)
    # the gather is alone until 10, both get half until the exchange is done at 50, the gather ends at 60
    assert (timeline.finish_us[0], timeline.start_us[2], timeline.finish_us[2]) == (60.0, 10.0, 50.0)
    assert (timeline.exposed_us, timeline.step_us, timeline.slowed_us) == (20.0, 70.0, 0.0)
    assert lower_bound_us(problem) == 60.0  # all the link's work
    assert lower_bound_us(replace(problem, contention=NO_CONTENTION)) == 50.0


def test_compute_is_slower_beside_a_collective() -> None:
    problem = replace(two_groups(), contention=Contention({"all_gather": 1.25, "all_to_all": 2.0}))
    timeline = replay(problem, problem.original_order)
    # `before` until 12.5; `beside` at half its speed until 32.5, then at 1 / 1.25 until 40, then alone: 14 are left
    assert (timeline.finish_us[1], timeline.finish_us[2], timeline.finish_us[3]) == (12.5, 32.5, 54.0)
    assert (timeline.exposed_us, timeline.step_us) == (0.0, 64.0)
    assert timeline.slowed_us == pytest.approx(14.0)
    assert lower_bound_us(problem) == 60.0  # all compute, 50, and what the exchange takes from it, 20 * (1 - 1/2)


def test_what_binds_compute_says_how_much_slower_it_gets() -> None:
    contention = Contention({"": 1.5}, shares={"flops": 0.5, "bytes": 2.0}, flops_per_byte=100.0)
    nodes = (
        Node("gather", Kind.COLLECTIVE, time_us=100.0, op="all_gather", group="fsdp"),
        Node("mm", Kind.COMPUTE, time_us=20.0, flops=1_000, bytes=10),  # at the device's balance: bound by FLOPs
        Node("add", Kind.COMPUTE, time_us=20.0, flops=999, bytes=10),
        Node("unknown", Kind.COMPUTE, time_us=20.0),
        Node("wait", Kind.WAIT, collective=0),
    )
    problem = Problem("kinds", nodes, (), {"fsdp": Group(2, True)}, contention=contention)
    timeline = replay(problem, problem.original_order)
    assert timeline.finish_us[1:4] == (25.0, 65.0, 95.0)  # 1.25, 2 and 1.5 times as long
    assert (timeline.exposed_us, timeline.slowed_us) == (5.0, 35.0)
    assert lower_bound_us(problem) <= 100.0
    assert [contention.share_of(*work) for work in ((0, 5), (5, 0), (0, 0))] == [2.0, 0.5, 1.0]
    assert (
        replace(contention, shares={"flops": 0.0}).share_of(1, 1) == 1.0
    )  # bound by its bytes, of which nothing is said


SHARES = "a share is finite and 0 or more (1: all of it, 0.5: beside a factor of 1.2 it takes 1.1 times its time)."
CROWDING = "crowding is 1 (those in flight do not slow each other down) to lanes (no faster than one after the other)."
STRETCH = (
    "times its time; this factor is finite and above 0. Give how many times as long the collective takes, 1.1 for a "
    "tenth longer, 0.9 for a tenth less."
)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"slowdown": {"all_gather": 0.9}}, "compute beside 'all_gather' takes 0.9 times its time; a factor is"),
        ({"shares": {"memory": 1.0}, "flops_per_byte": 100.0}, "compute bound by 'memory' takes 1.0 of a slowdown;"),
        ({"shares": {"flops": -0.5}, "flops_per_byte": 100.0}, "compute bound by 'flops' takes -0.5 of a slowdown;"),
        ({"shares": {"flops": 0.5}}, "shares by what binds compute, and flops_per_byte is 0.0: give the device's"),
        ({"lanes": 2, "crowding": 2.5}, f"crowding is 2.5 and lanes 2; {CROWDING}"),
        ({"crowding": 1.5}, f"crowding is 1.5 and lanes 1; {CROWDING}"),
        ({"lanes": 0}, "lanes is 0; a group has one collective in flight, or more."),
        *(
            ({"stretch": {"all_gather": factor}}, f"'all_gather' beside compute takes {factor} {STRETCH}")
            for factor in (0.0, -1.0, float("inf"), float("nan"))
        ),
    ],
)
def test_contention_that_cannot_be_is_told(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Contention(**wrong)
    assert str(caught.value).startswith(f"contention: {text}")


def test_links_are_of_groups_that_there_are() -> None:
    with pytest.raises(ProblemError) as caught:
        replace(EXAMPLE, contention=Contention(links={"tp": "nvlink"}))
    assert str(caught.value).startswith("contention: group 'tp' has link 'nvlink', but the problem's groups are")
    assert str(caught.value).endswith("Name a process group, or leave it out.")


def test_the_longest_prefix_counts() -> None:
    contention = Contention({"": 1.1, "all_gather": 1.2, "all_gather_into_tensor_coalesced": 1.3})
    assert contention.slowdown_of("all_gather_into_tensor") == 1.2
    assert contention.slowdown_of("all_gather_into_tensor_coalesced") == 1.3
    assert contention.slowdown_of("send") == 1.1
    assert NO_CONTENTION.slowdown_of("send") == 1.0


def test_the_drawn_example_two_lanes() -> None:
    gathers = [Node(f"gather{k}", Kind.COLLECTIVE, time_us=20.0, op="all_gather", group="fsdp") for k in range(3)]
    waits = [Node(f"wait{k}", Kind.WAIT, collective=k) for k in range(3)]
    contention = Contention(lanes=2, crowding=1.5)
    problem = Problem("lanes", (*gathers, *waits), (), {"fsdp": Group(2, True)}, contention=contention)
    assert problem.contention
    timeline = replay(problem, problem.original_order)
    assert timeline.start_us[:3] == (0.0, 0.0, 30.0)
    assert timeline.finish_us[:3] == (30.0, 30.0, 50.0)
    assert timeline.step_us == 50.0
    assert lower_bound_us(problem) == pytest.approx(45.0)  # 60 of them, at 3/4
    assert [Contention(lanes=3, crowding=2.0).crowded(n) for n in (0, 1, 2, 3)] == [1.0, 1.0, 1.5, 2.0]


def test_the_oracle_knows_the_example() -> None:
    exact = contended_step(EXAMPLE, EXAMPLE.original_order)
    assert (exact.step_us, exact.exposed_us) == (190, 80)
    assert exact.finish_us[8] == Fraction(190)


def test_a_collective_takes_longer_beside_compute() -> None:
    nodes = (
        Node("gather", Kind.COLLECTIVE, time_us=40.0, op="all_gather_into_tensor", group="fsdp"),
        Node("beside", Kind.COMPUTE, time_us=60.0),
        Node("wait", Kind.WAIT, collective=0),
    )
    problem = Problem("one group", nodes, (), {"fsdp": Group(2, True)}, contention=Contention(stretch={"all_": 3.0}))
    timeline = replay(problem, problem.original_order)
    # a third of 60 us is done beside compute, the other 20 at the wait
    assert (timeline.exposed_us, timeline.step_us, timeline.slowed_us) == (20.0, 80.0, 0.0)
    assert problem.contention
    assert problem.contention.stretch_of("reduce_scatter_tensor") == 1.0


def test_a_collective_goes_faster_beside_compute() -> None:
    nodes = (
        Node("gather", Kind.COLLECTIVE, time_us=40.0, op="all_gather_into_tensor", group="fsdp"),
        Node("beside", Kind.COMPUTE, time_us=10.0),
        Node("wait", Kind.WAIT, collective=0),
    )
    contention = Contention({"all_": 2.0}, stretch={"all_": 0.5})
    problem = Problem("one group", nodes, (), {"fsdp": Group(2, True)}, contention=contention)
    timeline = replay(problem, problem.original_order)
    # beside the gather compute takes 20 us, in which all of it is done
    assert (timeline.finish_us[0], timeline.exposed_us, timeline.step_us) == (20.0, 0.0, 20.0)
    # 20 us are the least that it takes, and half of them it takes from compute
    assert lower_bound_us(problem) == 20.0
    assert parts_bound_us(problem) == 20.0
