"""Contention: replay and bound against an exact simulation, a drawn example, and none at all."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import ProblemError
from overlap_sched.judge.lower_bound import lower_bound_us, parts_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from tests.support.graphs import problems
from tests.support.oracle import random_order

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


@given(problems())
def test_without_contention_not_a_bit_changes(problem: Problem) -> None:
    none = Contention({"": 1.0}, dict.fromkeys(list(problem.groups)[:1], "nvlink"))
    assert not none
    for seed in range(2):
        order = random_order(problem, seed)
        assert replay(replace(problem, contention=none), order) == replay(problem, order)
    assert lower_bound_us(replace(problem, contention=none)) == lower_bound_us(problem)


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slowdown": {"all_gather": 0.9}}, "compute beside 'all_gather' takes 0.9 times its time"),
        ({"shares": {"memory": 1.0}, "flops_per_byte": 100.0}, "compute bound by 'memory' takes 1.0 of"),
        ({"shares": {"flops": -0.5}, "flops_per_byte": 100.0}, "compute bound by 'flops' takes -0.5 of"),
        ({"shares": {"flops": 0.5}}, "flops_per_byte is 0.0"),
        ({"lanes": 2, "crowding": 2.5}, "crowding is 2.5 and lanes 2"),
        ({"crowding": 1.5}, "crowding is 1.5 and lanes 1"),
        ({"lanes": 0}, "lanes is 0"),
        ({"links": {"tp": "nvlink"}}, "group 'tp' has link 'nvlink'"),
        *(({"stretch": {"": factor}}, f"'' beside compute takes {factor}") for factor in (0.0, float("inf"), -1.0)),
    ],
)
def test_contention_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ProblemError, match=f"^contention: .*{re.escape(said)}"):
        replace(EXAMPLE, contention=Contention(**wrong))


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
