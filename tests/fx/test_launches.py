"""Launch nodes: what launching takes of the compute stream, where a cost model knows it."""

import pytest

pytest.importorskip("torch")

from overlap_sched import EXAMPLE
from overlap_sched.cost import Collective, Roofline
from overlap_sched.cost.model import LaunchingModel
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import FINISH, LAUNCH, launch_times, with_launches
from overlap_sched.judge.replay import replay
from overlap_sched.options import Options
from overlap_sched.problem import PART, Kind, Node, Problem
from overlap_sched.scheduler.driver import schedule
from tests.support.fx_graphs import gather, scatter, trace, wait


def step(x, w):
    full = wait(gather(w))
    return wait(scatter(x @ full)), x * 2


class Launching(Roofline):
    """Gathers take the launching thread 7 us, other collectives nothing."""

    def launch_us(self, work: Collective) -> float:
        return 7.0 if work.op.startswith("all_gather") else 0.0


def test_a_launch_node_stands_before_its_collective():
    nodes, stands_for = with_launches(EXAMPLE.nodes, {2: 5.0, 7: 3.0})
    assert [node.name for node in nodes] == [
        *("w", "x", "gather.launch", "gather", "full", "mm", "dgrad", "wgrad", "scatter.launch", "scatter", "grad"),
        "output",
    ]
    assert stands_for == (0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9)
    launch, gather, wait = nodes[2:5]
    assert (launch.kind, launch.deps, launch.time_us, launch.op) == (Kind.COMPUTE, (0,), 5.0, LAUNCH)
    assert (launch.alloc, launch.use) == ((), ())
    assert gather.deps == (0, 2)
    assert (wait.deps, wait.collective) == ((3,), 3)
    problem = Problem("example", nodes, EXAMPLE.storages, EXAMPLE.groups)  # is checked
    before, after = (replay(one, one.original_order) for one in (EXAMPLE, problem))
    assert after.step_us == before.step_us + 5.0 + 3.0


class Finishing(Launching):
    """Waits for scatters copy what was summed up, 4 us."""

    def finish_us(self, work: Collective) -> float:
        return 4.0 if work.op.startswith("reduce_scatter") else 0.0


def test_a_part_takes_no_more_than_what_finishes_the_collective_does():
    """Of a collective whose only wait is a part that takes the time; else its own wait does."""
    part = Node("mm.gather", Kind.WAIT, (2,), op=PART, collective=2)
    for last, timed in ((EXAMPLE.nodes[3]._replace(deps=(3,)), 4), (Node("full", Kind.COMPUTE, (3,)), 3)):
        nodes = (*EXAMPLE.nodes[:3], part, last)
        gathers = {"finish_us": lambda self, work: 4.0, "launch_us": lambda self, work: 0.0}
        assert launch_times(nodes, EXAMPLE.groups, type("Gathers", (Finishing,), gathers)()) == {timed: 4.0}


def test_a_finish_node_stands_before_its_wait():
    times = launch_times(EXAMPLE.nodes, EXAMPLE.groups, Finishing())
    assert times == {2: 7.0, 8: 4.0}
    nodes, stands_for = with_launches(EXAMPLE.nodes, times)
    assert stands_for == (0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8, 9)
    finish, wait = nodes[9:11]
    assert (finish.name, finish.kind, finish.time_us, finish.op) == ("grad.finish", Kind.COMPUTE, 4.0, FINISH)
    assert wait.deps == (8, 9)
    assert wait.collective == 8
    launched_before = EXAMPLE.nodes[8]._replace(collective=None)  # by another graph: its size is not known here
    assert launch_times((*EXAMPLE.nodes[:8], launched_before), EXAMPLE.groups, Finishing()) == {2: 7.0}


def test_without_launch_times_nothing_changes():
    assert with_launches(EXAMPLE.nodes, {}) == (EXAMPLE.nodes, tuple(range(10)))
    assert launch_times(EXAMPLE.nodes, EXAMPLE.groups, Roofline()) == {}
    assert launch_times(EXAMPLE.nodes, EXAMPLE.groups, None) == {}
    assert not isinstance(Roofline(), LaunchingModel)


def test_times_come_from_the_model():
    assert launch_times(EXAMPLE.nodes, EXAMPLE.groups, Launching()) == {2: 7.0}


def test_a_lifted_graph_has_launches_and_comes_back_in_order():
    gm = trace(step, (8, 8), (4, 8))
    plain, lifted = lift(gm), lift(gm, model=Launching())
    launches = [v for v, node in enumerate(lifted.problem.nodes) if node.op == LAUNCH]
    gathers = [v for v in lifted.problem.collectives if lifted.problem.nodes[v].op.startswith("all_gather")]
    assert [v + 1 for v in launches] == gathers != []
    assert [lifted.prices[v].time_us for v in launches] == [7.0] * len(launches)
    assert [lifted.prices[v].source for v in launches] == ["table"] * len(launches)
    others = [price for v, price in enumerate(lifted.prices) if v not in launches]
    assert [price.time_us for price in others] == [price.time_us for price in plain.prices]
    result = schedule(lifted.problem, Options())
    reordered = lifted.reordered(result.order)
    assert sorted(node.name for node in reordered) == sorted(node.name for node in gm.graph.nodes)
