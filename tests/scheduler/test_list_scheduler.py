"""One run: within the budget whatever the policy; each rule on a graph of ten nodes, with it and without."""

import math
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.list_scheduler import ListScheduler, Policy, list_schedule
from overlap_sched.scheduler.task import Reference
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import layers
from tests.support.oracle import peak_by_definition, random_order

POLICIES = st.builds(
    Policy,
    lead=st.sampled_from([-1.0, -0.02, 0.0, 0.1, 1.0]),
    slack=st.sampled_from([-1.0, -0.03, 0.0, 0.12, 1.0]),
    window=st.sampled_from([1, 2, 5, math.inf]),
    prepares=st.booleans(),
    keeps_busy=st.booleans(),
)


@examples(80)
@given(problems(), POLICIES, st.integers(0, 99), st.integers(0, 9), st.booleans())
def test_valid_and_within_the_budget_under_any_policy(
    problem: Problem, policy: Policy, seed: int, room: int, flat: bool
) -> None:
    reference = random_order(problem, seed)
    profile = np.array(peak_by_definition(problem, reference))
    limit = np.array(profile.max() + room) if flat else profile + room
    run = list_schedule(Reference(problem, reference), limit, policy).made
    assert run is not None
    assert violation(problem, run.order) is None
    made = np.array(peak_by_definition(problem, list(run.order)))
    assert (made <= limit).all()
    assert run.peak_bytes == made.max()
    assert math.isclose(run.step_us, replay(problem, run.order).step_us, rel_tol=1e-9)


def test_what_memory_refuses_on_one_stream_does_not_stop_another() -> None:
    """Five large gathers have no room beside `mm`; the small one of another group has, and is launched before it."""
    nodes = [Node("mm", Kind.COMPUTE, alloc=(0,), time_us=100.0)]
    storages = [Storage(100)]
    for name, group, size in [*((f"large{k}", "fsdp", 100) for k in range(5)), ("small", "tp", 1)]:
        v, s = len(nodes), len(storages)
        storages.append(Storage(size))
        nodes.append(Node(name, Kind.COLLECTIVE, (), (s,), (), 10.0, "all_gather_into_tensor", group))
        nodes.append(Node(f"{name}.wait", Kind.WAIT, (v,), (), (s,), collective=v))
        nodes.append(Node(f"{name}.use", Kind.COMPUTE, (v + 1,), (), (s,), 5.0))
    problem = Problem("two streams", tuple(nodes), tuple(storages), {"fsdp": Group(8, False), "tp": Group(8, True)})
    run = list_schedule(Reference(problem, problem.original_order), np.array(101), Policy(lead=1.0, slack=-1.0)).made
    assert run is not None
    assert problem.names(run.order)[:2] == ["small", "mm"]


def test_what_frees_memory_is_launched_in_its_place_though_nobody_needs_it_soon() -> None:
    """Reduce_scatters on a stream of their own: nobody needs their results before the end of the step.

    Launched that late, their inputs fill the memory that the next gathers need: 1,500 us instead of 1,140.
    """
    shared = layers(12)
    nodes = tuple(node._replace(group="dp") if node.name.startswith("scatter") else node for node in shared.nodes)
    problem = replace(shared, nodes=nodes, groups={**shared.groups, "dp": Group(2, False)})
    reference = Reference(problem, problem.original_order)
    assert sum(reference.frees) == 12
    run = list_schedule(reference, reference.profile.max(), Policy(lead=0.005, slack=-1.0)).made
    assert run is not None
    assert run.step_us == 1140.0
    names = problem.names(run.order)
    assert all(names.index(f"scatter{k}") < names.index(f"gather{k + 2}") for k in range(10))


AT_LATEST = Policy(lead=0.0, slack=0.0)
"""Launches at their latest start, the critical path when it becomes late: the rules as they are, nothing ahead."""


class Graph:
    """Builds a problem node by node; every value has one byte."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def compute(self, name: str, us: float, *deps: str) -> None:
        self._add(name, Kind.COMPUTE, deps, us)

    def gather(self, name: str, us: float, *deps: str, group: str = "fsdp") -> None:
        """A collective and, right behind it, its wait: ``w.<name>``."""
        v = self._add(name, Kind.COLLECTIVE, deps, us, op="all_gather_into_tensor", group=group)
        self.nodes.append(Node(f"w.{name}", Kind.WAIT, (v,), (), (v,), collective=v))

    def _add(self, name: str, kind: Kind, deps: tuple[str, ...], us: float, **more: str) -> int:
        ids = {node.name: v for v, node in enumerate(self.nodes)}
        v = len(self.nodes)
        before = tuple(sorted(ids[dep] for dep in deps))
        self.nodes.append(Node(name, kind, before, (v,), (), us, **more))  # type: ignore[arg-type]
        return v

    def run(self, policy: Policy = AT_LATEST) -> tuple[str, float]:
        """The names in the order in which they run, waits left out, and the step."""
        storages = tuple(Storage(1) for _ in self.nodes)
        groups = {name: Group(8, True) for name in ("fsdp", "tp")}
        problem = Problem("rule", tuple(self.nodes), storages, groups)
        made = list_schedule(Reference(problem, problem.original_order), np.array(99), policy).made
        assert made is not None
        return " ".join(problem.names(made.order)), made.step_us


def test_compute_is_looked_for_no_further_than_the_window() -> None:
    graph = Graph()
    graph.gather("gather", 50.0)
    graph.compute("use", 10.0, "w.gather")
    graph.compute("far", 40.0)
    assert graph.run(Policy(lead=0.0, slack=-1.0, window=3)) == ("gather far w.gather use", 60.0)
    assert graph.run(Policy(lead=0.0, slack=-1.0, window=2)) == ("gather w.gather use far", 100.0)


@pytest.mark.parametrize(("prepares", "first", "step_us"), [(True, "cast", 100_011.0), (False, "mm", 100_061.0)])
def test_what_prepares_a_launch_runs_ahead_of_its_place(prepares: bool, first: str, step_us: float) -> None:
    graph = Graph()
    graph.compute("mm", 100_000.0)
    graph.compute("cast", 1.0)
    graph.gather("gather", 50.0, "cast")
    graph.compute("use", 10.0, "w.gather")
    order, found_us = graph.run(Policy(lead=0.0, slack=-1.0, prepares=prepares))
    assert (order.split()[0], found_us) == (first, step_us)


def test_standing_still_launches_only_what_is_due_meanwhile() -> None:
    """While `first` is awaited nothing can run; `later`, wanted after 200 us of compute, must not get before `next`."""
    graph = Graph()
    graph.gather("first", 20.0)
    for k in range(50):  # so many that nobody looks ahead through them
        graph.compute(f"step{k}", 1.0, f"step{k - 1}" if k else "w.first")
    graph.gather("next", 20.0, "step49")
    graph.compute("mm", 200.0, "w.next")
    graph.gather("later", 100.0)
    graph.compute("end", 10.0, "mm", "w.later")
    assert graph.run(Policy(lead=0.0, slack=-1.0))[1] == 20 + 50 + 20 + 200 + 10


def without(rule: str) -> Callable[[Graph], tuple[str, float]]:
    """Runs a graph with a rule that never finds anything."""

    def run(graph: Graph) -> tuple[str, float]:
        with patch.object(ListScheduler, rule, lambda *_: None):
            return graph.run()

    return run


def test_rule_0_what_costs_nothing_runs_at_once() -> None:
    """The wait of a gather that has completed lets go of its input: before the compute that is ready too."""
    graph = Graph()
    graph.gather("gather", 10.0)
    graph.compute("mm", 30.0)
    graph.compute("other", 30.0)
    graph.compute("use", 5.0, "w.gather")
    assert graph.run(Policy(lead=1.0, slack=0.0)) == ("gather mm w.gather other use", 65.0)


def test_rule_1_a_launch_whose_latest_start_would_pass_goes_first() -> None:
    graph = Graph()
    graph.compute("mm", 30.0)
    graph.compute("other", 30.0)
    graph.gather("gather", 30.0)
    graph.compute("use", 5.0, "w.gather")
    graph.compute("last", 100.0)
    assert graph.run() == ("mm gather other w.gather use last", 165.0)  # not before `mm`: `other` still hides it
    assert without("_launch_urgent")(graph) == ("mm other gather last w.gather use", 165.0)  # `use` waits for its turn


def test_rule_2_the_critical_path_goes_before_what_can_wait() -> None:
    graph = Graph()
    graph.compute("wgrad", 30.0)
    graph.compute("chain", 10.0)
    graph.gather("reduce", 40.0, "chain")
    graph.compute("end", 10.0, "w.reduce")
    assert graph.run() == ("chain reduce wgrad w.reduce end", 60.0)
    assert without("_becomes_late")(graph) == ("wgrad chain reduce w.reduce end", 90.0)


def test_rule_3_the_next_compute_of_the_reference_order_while_a_wait_would_stall() -> None:
    graph = Graph()
    graph.gather("gather", 40.0)
    graph.compute("use", 5.0, "w.gather")
    graph.compute("first", 20.0)
    graph.compute("second", 20.0)
    assert graph.run() == ("gather first second w.gather use", 45.0)


def test_rule_4_of_waits_that_would_stall_the_one_that_completes_first() -> None:
    graph = Graph()
    graph.gather("long", 50.0, group="fsdp")
    graph.gather("short", 10.0, group="tp")
    graph.compute("after_long", 5.0, "w.long")
    graph.compute("after_short", 40.0, "w.short")
    assert graph.run() == ("long short w.short after_short w.long after_long", 55.0)


def test_rule_5_launches_in_each_others_way_go_in_reference_order() -> None:
    graph = Graph()
    graph.gather("one", 10.0)
    graph.gather("two", 10.0)
    graph.compute("end", 5.0, "w.one", "w.two")
    with patch.object(ListScheduler, "_delays_more_urgent", lambda *_: True):
        order, step_us = graph.run()
    assert order.split()[0] == "one"
    assert step_us == 25.0


def test_a_launch_lets_a_more_urgent_one_go_first() -> None:
    """`long`, which nobody needs soon, would keep the stream busy when `urgent` gets ready after 1 us."""
    graph = Graph()
    graph.gather("long", 40.0)
    graph.compute("chain", 1.0)
    graph.gather("urgent", 5.0, "chain")
    graph.compute("mm", 60.0, "w.urgent")
    graph.compute("end", 5.0, "w.long", "mm")
    early = Policy(lead=1.0, slack=0.0)
    assert graph.run(early) == ("chain urgent long w.urgent mm w.long end", 71.0)
    with patch.object(ListScheduler, "_delays_more_urgent", lambda *_: False):
        assert graph.run(early) == ("long chain urgent w.long w.urgent mm end", 110.0)


@pytest.mark.parametrize(("keeps_busy", "step_us"), [(False, 90.0), (True, 80.0)])
def test_a_stream_that_binds_is_not_left_idle_for_a_more_urgent_launch(keeps_busy: bool, step_us: float) -> None:
    """The stream has 80 us to do, the longest path 70: 10 us without work are 10 us more."""
    graph = Graph()
    graph.gather("short", 20.0)
    graph.compute("chain", 10.0)
    graph.gather("urgent", 20.0, "chain")
    graph.gather("last", 40.0, "chain")
    graph.compute("mm", 40.0, "w.urgent")
    order, found_us = graph.run(Policy(lead=1.0, slack=0.0, keeps_busy=keeps_busy))
    assert order.split()[0] == ("short" if keeps_busy else "chain")
    assert found_us == step_us


@pytest.mark.parametrize(("lead", "first"), [(0.0, "mm"), (1.0, "gather")])
def test_lead_is_how_much_sooner_than_at_its_latest_start(lead: float, first: str) -> None:
    graph = Graph()
    graph.compute("mm", 30.0)
    graph.compute("other", 30.0)
    graph.gather("gather", 10.0)
    graph.compute("use", 5.0, "w.gather")
    order, step_us = graph.run(Policy(lead=lead, slack=0.0))
    assert (order.split()[0], step_us) == (first, 65.0)
