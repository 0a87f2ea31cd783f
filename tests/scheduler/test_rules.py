"""Each rule of the list scheduler on a graph of ten nodes at most, with the rule and without it."""

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest

from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.scheduler.list_scheduler import ListScheduler, Policy, list_schedule
from overlap_sched.scheduler.task import Reference

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
        assert len(self.nodes) <= 10
        storages = tuple(Storage(1) for _ in self.nodes)
        groups = {name: Group(8, True) for name in ("fsdp", "tp")}
        problem = Problem("rule", tuple(self.nodes), storages, groups)
        made = list_schedule(Reference(problem, problem.original_order), np.array(99), policy).made
        assert made is not None
        return " ".join(problem.names(made.order)), made.step_us


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
    assert without("_launch_due")(graph) == ("mm other gather last w.gather use", 165.0)  # `use` waits for its turn


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
