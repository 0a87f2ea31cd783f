"""What kept a collective from being hidden better: one small graph for each answer."""

from dataclasses import replace
from typing import Any

import pytest

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.replay import replay
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.task import Candidate, Refusal, Task

NODES = (
    Node("make", Kind.COMPUTE, (), (0,), (), 10.0),
    Node("one", Kind.COLLECTIVE, (), (1,), (), 30.0, "all_gather_into_tensor", "fsdp"),
    Node("two", Kind.COLLECTIVE, (0,), (2,), (0,), 20.0, "all_gather_into_tensor", "fsdp"),
    Node("mm", Kind.COMPUTE, (), (3,), (), 5.0),
    Node("one.wait", Kind.WAIT, (1,), (), (1,), collective=1),
    Node("two.wait", Kind.WAIT, (2,), (), (0, 2), collective=2),
    Node("long", Kind.COMPUTE, (), (4,), (), 100.0),
)
PROBLEM = Problem("holders", NODES, tuple(Storage(1) for _ in range(5)), {"fsdp": Group(8, True)})


def of(collective: str, order: str, refused: bool = False) -> Decision:
    """The decision on a collective in an order given by names."""
    ids = {node.name: v for v, node in enumerate(NODES)}
    task = Task(PROBLEM, Options(), 99)
    best = task.measured(tuple(ids[name] for name in order.split()))
    refusals = {ids[collective]: Refusal(7, ids["mm"])} if refused else {}
    made = Candidate(best.order, best.step_us, best.peak_bytes, {}, refusals)
    return next(d for d in decisions(PROBLEM, replay(PROBLEM, best.order), made) if d.collective == ids[collective])


@pytest.mark.parametrize(
    ("collective", "order", "refused", "held_by", "held_node"),
    [
        ("one", "one long make two mm one.wait two.wait", False, "nothing", None),
        ("one", "one mm one.wait make two two.wait long", False, "start", None),  # at once, waited for too soon
        ("two", "one make two mm two.wait one.wait long", False, "stream", "one"),  # `one` is on the stream until 30
        ("two", "make two mm two.wait one one.wait long", False, "dependency", "make"),  # launched as soon as it can be
        ("two", "make mm two two.wait one one.wait long", False, "choice", None),  # 5 us later than it could be
        ("two", "make mm two two.wait one one.wait long", True, "memory", None),  # the same, and it had been refused
        ("two", "make two mm two.wait one one.wait long", True, "dependency", "make"),  # refused, yet not delayed by it
    ],
)
def test_what_held_it_back(collective: str, order: str, refused: bool, held_by: str, held_node: str | None) -> None:
    found = of(collective, order, refused)
    assert found.held_by == held_by
    assert (None if found.held_node is None else NODES[found.held_node].name) == held_node
    assert (found.over_bytes, found.over_position) == ((7, 3) if refused else (0, None))


@pytest.mark.parametrize(
    ("order", "base_bytes", "asked", "held_by", "held_node"),
    [
        ("make mm two two.wait one one.wait long", 3, {}, "choice", None),
        ("make mm two two.wait one one.wait long", 2, {}, "memory", None),  # its byte does not fit beside `mm`
        ("make mm two two.wait one one.wait long", 0, {"budget": "profile"}, "memory", None),
        ("make mm two two.wait one one.wait long", 99, {"pins": ("not before blk: two",)}, "dependency", "mm"),
        ("make one one.wait two mm two.wait long", 99, {}, "choice", None),
        ("make one one.wait two mm two.wait long", 99, {"concurrent_groups": "one"}, "dependency", "one.wait"),
        ("make mm one two two.wait one.wait long", 99, {"preserve_collective_order": "all"}, "dependency", "one"),
        ("make mm one two two.wait one.wait long", 99, {"preserve_collective_order": "group"}, "choice", None),
    ],
)
def test_what_was_asked_for_may_forbid_an_earlier_launch(
    order: str, base_bytes: int, asked: dict[str, Any], held_by: str, held_node: str | None
) -> None:
    """Of `two`, 5 us and more later than it could be; `one` is on another stream, and not beside it originally."""
    make, one, two, mm, waited, *others = NODES
    listed = (make, mm._replace(module="blk"), one._replace(group="tp"), waited._replace(deps=(2,), collective=2), two)
    nodes = (*listed, others[0]._replace(deps=(4,), collective=4), others[1])
    problem = replace(PROBLEM, nodes=nodes, groups={"fsdp": Group(8, True), "tp": Group(8, True)})
    ids = {node.name: v for v, node in enumerate(nodes)}
    task = Task(problem, Options(**asked), base_bytes)
    best = task.measured(tuple(ids[name] for name in order.split()))
    found = next(d for d in decisions(problem, replay(problem, best.order), best, task) if d.collective == ids["two"])
    assert found.held_by == held_by
    assert (None if found.held_node is None else nodes[found.held_node].name) == held_node


def test_where_it_ran_and_what_hid_it() -> None:
    found = of("one", "make one mm two long one.wait two.wait")
    assert (found.position, found.original_position) == (1, 1)
    assert (found.launch_us, found.start_us, found.finish_us, found.wait_us) == (10.0, 10.0, 40.0, 115.0)
    assert (found.hidden_us, found.exposed_us) == (30.0, 0.0)
    assert [NODES[v].name for v in found.under] == ["long", "mm"]
    behind = of("two", "make one mm two long one.wait two.wait")
    assert (behind.launch_us, behind.start_us, behind.finish_us) == (15.0, 40.0, 60.0)
