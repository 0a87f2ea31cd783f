"""Several collectives waited for at once (``wait_tensors``, torch 2.15), and waits of waits."""

from typing import Any

import pytest
from torch import Tensor, fx

from overlap_sched.fx import lift, schedule_graph
from overlap_sched.fx.lifting import one_collective_each
from overlap_sched.judge.replay import replay
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Node
from tests.support.fx_graphs import ATEN, C10D, RANKS, gather, trace, wait, wait_for_all


def two_outputs(x: Tensor, y: Tensor) -> Any:
    outs = wait_for_all(*C10D.all_gather_into_tensor_coalesced([x, y], RANKS, "0"))
    return outs[0] + 1, outs[1]


def two_groups(x: Tensor, y: Tensor) -> Any:
    outs = wait_for_all(gather(x * 2, "fast"), gather(y * 2, "slow"))
    z = x @ y
    return outs[0] @ z, outs[1]


def times(node: fx.Node) -> float:
    if node.target is C10D.all_gather_into_tensor.default:
        return {"fast": 10.0, "slow": 40.0}[str(node.args[2])]
    return 30.0 if node.target is ATEN.mm.default else 0.0


def test_one_collective_with_several_outputs_has_one_wait_that_holds_all_of_it() -> None:
    lifted = lift(trace(two_outputs, (4, 4), (4, 4)))
    (launch,) = lifted.problem.collectives
    (wait,) = lifted.problem.waits[launch]
    assert lifted.problem.nodes[launch].alloc == (2, 3)
    assert set(lifted.problem.nodes[wait].use) == {0, 1, 2, 3}
    assert lifted.nodes == tuple(lifted.nodes[0].graph.nodes)
    assert lifted.notes == {}


def test_a_wait_of_two_collectives_becomes_a_wait_of_each() -> None:
    gm = trace(two_groups, (4, 4), (4, 4))
    lifted = lift(gm, cost=times)
    nodes = lifted.problem.nodes
    fast, slow = lifted.problem.collectives
    ((first,), (last,)) = (lifted.problem.waits[launch] for launch in (fast, slow))
    assert (nodes[first].name, nodes[last].name) == ("wait_tensors.all_gather_into_tensor", "wait_tensors")
    assert first in nodes[last].deps
    assert (nodes[first].alloc, nodes[first].use) == ((), ())
    assert {*nodes[fast].use, *nodes[fast].alloc, *nodes[slow].use, *nodes[slow].alloc} <= set(nodes[last].use)
    assert lifted.nodes[first] is lifted.nodes[last]
    assert lifted.reordered(lifted.problem.original_order) == list(gm.graph.nodes)
    timeline = replay(lifted.problem, lifted.problem.original_order)
    assert sum(timeline.stall_us) == 40.0  # until the last of them has finished, not until one has
    assert timeline.step_us == 40.0 + 2 * 30.0


def test_the_program_waits_where_the_last_of_the_waits_is() -> None:
    lifted = lift(trace(two_groups, (4, 4), (4, 4)))
    names = [node.name for node in lifted.problem.nodes]
    mm, last = names.index("mm"), names.index("wait_tensors")
    order = [v for v in lifted.problem.original_order if v != mm]
    order.insert(order.index(last), mm)  # between the two waits
    program = [node.name for node in lifted.reordered(order)]
    assert program.index("mm") == program.index("wait_tensors") - 1


def test_what_has_been_waited_for_before_is_not_waited_for_again() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        one, other = gather(x * 2, "fast"), gather(y * 2, "slow")
        done = wait(other)
        return wait_for_all(one, done)

    problem = lift(trace(f, (4, 4), (4, 4))).problem
    fast, slow = problem.collectives
    assert [len(problem.waits[launch]) for launch in (fast, slow)] == [1, 1]
    (last,) = problem.waits[fast]
    assert not {*problem.nodes[slow].use} & {*problem.nodes[last].use}


def test_a_wait_of_two_collectives_is_deferred_as_a_whole() -> None:
    gm = trace(two_groups, (4, 4), (4, 4))
    report = schedule_graph(gm, Options(headroom="1MiB"), cost=times)
    assert report.changed
    assert report.schedule is not None
    assert report.schedule.scheduled.step_us == 40.0 + 30.0
    names = [node.name for node in gm.graph.nodes]
    assert names.index("mm") < names.index("wait_tensors")
    assert len(names) == len(set(names)) == len(report.schedule.order) - 1
    gm.graph.lint()


@pytest.mark.parametrize("second", [(), (2,), (2, 1)])
def test_nodes_behind_are_renumbered(second: tuple[int, ...]) -> None:
    """Two collectives; a wait of both, a wait of one or more, and what uses them."""
    nodes = [
        Node("x", Kind.INPUT),
        Node("one", Kind.COLLECTIVE, (0,), group="g"),
        Node("two", Kind.COLLECTIVE, (0,), group="g"),
        Node("both", Kind.WAIT, (1, 2), collective=2),
        Node("later", Kind.WAIT, (3,), collective=2 if second else None),
        Node("use", Kind.COMPUTE, (3, 4)),
    ]
    found, stands_for = one_collective_each(nodes, {3: (1, 2), **({4: second} if second else {})})
    company = [3] if len(second) < 2 else [3, 5]
    assert [v for v, node in enumerate(found) if "." in node.name] == company
    assert [found[v].collective for v in company] == [1] * len(company)
    assert [nodes[v] for v in stands_for] == [nodes[stands_for[v]] for v in range(len(found))]
    names = [node.name for node in found]
    for old, v in ((3, names.index("both")), (4, names.index("later")), (5, names.index("use"))):
        assert {names[u] for u in found[v].deps if "." not in names[u]} == {nodes[u].name for u in nodes[old].deps}
        assert found[v].collective == nodes[old].collective
    assert 3 in found[4].deps


def waited_for_twice(x: Tensor, y: Tensor) -> Any:
    a = wait(wait(gather(x)))
    b = wait(wait(gather(y)).view(-1))
    return a @ x.t(), b + 1


def test_a_wait_of_a_wait_costs_nothing_and_waits_for_nothing() -> None:
    lifted = lift(trace(waited_for_twice, (4, 4), (4, 4)))
    problem = lifted.problem
    assert [len(problem.waits[launch]) for launch in problem.collectives] == [1, 1]
    named = [node for node in problem.nodes if node.op == "_c10d_functional.wait_tensor.default"]
    (again, of_a_view) = (node for node in named if node.kind is not Kind.WAIT)
    for node, before in ((again, "wait_tensor"), (of_a_view, "view")):
        assert (node.kind, node.time_us, node.alloc) == (Kind.COMPUTE, 0.0, ())
        assert [problem.nodes[u].name for u in node.deps] == [before]
    assert lifted.notes == {}


def test_a_second_wait_of_a_launch_and_one_of_a_collective_on_what_was_waited_for_are_waits() -> None:
    def f(x: Tensor) -> Any:
        launched = gather(x)
        first, second = wait(launched), wait(launched)
        return wait(C10D.all_reduce_(first, "sum", "0")) + second

    problem = lift(trace(f, (4, 4))).problem
    assert [len(problem.waits[launch]) for launch in problem.collectives] == [2, 1]
