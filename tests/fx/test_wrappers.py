"""Operators that only run another one, or a sub-graph: what is inside is what counts."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._higher_order_ops import hints_wrap, strict_mode, wrap  # noqa: F401  registers them
from torch._higher_order_ops.effects import with_effects
from torch.utils._ordered_set import OrderedSet

from overlap_sched.fx import lift, schedule_graph
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Node, Problem
from tests.fx.test_fx_hazards import Builder
from tests.support.fx_graphs import ATEN, C10D, gather, trace, wait

with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering

HOP = torch.ops.higher_order


def exposed(x: Tensor, a: Tensor, b: Tensor) -> Any:
    return [wait(gather(shard)).sum() + (x @ x).sum() for shard in (a, b)]


def overlapped(x: Tensor, a: Tensor, b: Tensor) -> Any:
    results = []
    for shard in (a, b):
        launched = gather(shard)
        total = (x @ x).sum()
        results.append(wait(launched).sum() + total)
    return results


def traced(f: Callable[..., Any]) -> fx.GraphModule:
    return trace(f, (4096, 4096), (4096, 4096), (4096, 4096))


def ordered(f: Callable[..., Any], waits_too: bool) -> fx.GraphModule:
    """As torch's own overlap pass leaves it: each matmul after its launch, and perhaps the wait after that."""
    gm = traced(f)
    operators = C10D.all_gather_into_tensor.default, ATEN.mm.default, C10D.wait_tensor.default
    found = [gm.graph.find_nodes(op="call_function", target=op) for op in operators]
    after = {}
    for launch, matmul, waited in zip(*found, strict=True):
        after[matmul] = OrderedSet([launch])
        if waits_too:
            after[waited] = OrderedSet([matmul])
    preserve_node_ordering(gm.graph, after)
    gm.graph.lint()
    return gm


def by_name(problem: Problem) -> dict[str, Node]:
    return {node.name: node for node in problem.nodes}


def test_what_control_deps_orders_is_priced_and_lifted_as_what_it_runs() -> None:
    plain, wrapped = lift(traced(overlapped)), lift(ordered(overlapped, waits_too=True))
    one, other = by_name(plain.problem), by_name(wrapped.problem)
    for name in ("mm", "mm_1", "wait_tensor", "wait_tensor_1"):
        for field in ("kind", "op", "time_us", "flops", "bytes"):
            assert getattr(one[name], field) == getattr(other[name], field), (name, field)
    assert one["mm"].time_us == pytest.approx(231.4, abs=0.1)
    assert wrapped.notes == plain.notes == {}
    nodes = wrapped.problem.nodes
    names = [node.name for node in nodes]
    assert names.index("all_gather_into_tensor") in other["mm"].deps
    assert names.index("mm") in other["wait_tensor"].deps
    assert other["wait_tensor"].alloc == ()
    assert [len(wrapped.problem.waits[launch]) for launch in wrapped.problem.collectives] == [1, 1]


def test_what_control_deps_orders_hides_communication() -> None:
    options = Options(rewrites=(), headroom="1GiB", strict=True)
    for gm in (traced(exposed), ordered(exposed, waits_too=False)):
        plan = schedule_graph(gm, options).schedule
        assert plan is not None
        assert plan.original.exposed_us > 100.0
        assert plan.scheduled.exposed_us == 0.0
        gm.graph.lint()


def test_control_deps_of_something_random_keeps_its_order() -> None:
    gm = trace(lambda x: (torch.rand_like(x), torch.rand_like(x), x + 1), (4, 4))
    first, second, other = (node for node in gm.graph.nodes if node.op == "call_function")
    preserve_node_ordering(gm.graph, {second: OrderedSet([first]), other: OrderedSet([first])})
    nodes = by_name(lift(gm).problem)
    names = list(nodes)
    assert {names[u] for u in nodes["rand_like_1"].deps} >= {"rand_like"}
    assert lift(gm).notes == {}


def body(*more: fx.GraphModule) -> fx.GraphModule:
    """A matmul, a sine, and what else is run inside."""
    b = Builder()
    x = b.input("x")
    root = torch.nn.Module()
    x = b.call("inner_sin", ATEN.sin.default, b.call("inner_mm", ATEN.mm.default, x, x))
    for at, inner in enumerate(more):
        setattr(root, f"body{at}", inner)
        x = b.call(f"run{at}", HOP.invoke_subgraph, b.graph.get_attr(f"body{at}"), f"body{at}", x)
    return b.done(x, root=root)


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        ("invoke_subgraph", (), ("body",)),
        ("wrap", (), ()),
        ("tag_activation_checkpoint", (), ()),
        ("wrap_activation_checkpoint", (), ()),
        ("strict_mode", (), ()),
        ("hints_wrapper", (), ()),
        ("wrap_with_set_grad_enabled", (False,), ()),
    ],
)
def test_a_sub_graph_costs_what_is_in_it_at_every_depth(op: str, before: Any, after: Any) -> None:
    root = torch.nn.Module()
    root.body = body(body())
    b = Builder()
    x = b.input("x")
    b.call("write", ATEN.add_.Tensor, b.input("y"), 1)
    b.call("run", getattr(HOP, op), *before, b.graph.get_attr("body"), *after, x)
    lifted = lift(b.done(x, root=root))
    run = by_name(lifted.problem)["run"]
    assert run.flops == 2 * 2 * 4 * 4 * 4
    assert run.bytes == 2 * (2 + 2) * 64
    assert run.time_us == 4 * 2.0  # four kernels
    assert [lifted.problem.nodes[u].name for u in run.deps] == ["body", "x"]
    assert "unknown_op" not in lifted.notes


def test_a_wait_with_effects_gives_its_collectives_storage() -> None:
    b = Builder()
    token, x = b.input("token"), b.input("x")
    launch = b.call("launch", C10D.all_gather_into_tensor.default, x, 2, "0", val=b.tensor(8, 4))
    b.call("waited", with_effects, token, C10D.wait_tensor.default, launch, val=(b.tensor(0), b.tensor(8, 4)))
    problem = lift(b.done(x)).problem
    node = by_name(problem)["waited"]
    assert (node.kind, node.collective) == (Kind.WAIT, problem.collectives[0])
    assert [problem.storages[s].bytes for s in node.alloc] == [0]  # the token
