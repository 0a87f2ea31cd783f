"""Joint graphs without torch.compile around them: copies, halves put together, what stays in registers, gathers."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy

from overlap_sched import Options
from overlap_sched.fx import lift
from overlap_sched.joint import Judge, Marks, Question, fit_joint
from overlap_sched.joint.graphs import copy_of, joined, mark
from overlap_sched.joint.search import cut, gathers_again, in_registers, whole, without_registers
from overlap_sched.judge.validate import peak_memory

SIZES = ((64, 32), (32, 128), (128, 32))
JUDGE = Judge(Options(), "none", {}, 1)


def joint_graph() -> fx.GraphModule:
    def loss(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor]:
        for _ in range(3):
            x = x + torch.nn.functional.gelu(x @ up).sin() @ down
        return (x.square().sum(),)

    with FakeTensorMode():
        given = [torch.empty(size, requires_grad=True) for size in SIZES]
    gm = aot_export_joint_simple(loss, given, trace_joint=True)
    assert isinstance(gm, fx.GraphModule)
    gm.graph.set_codegen(fx.graph.CodeGen())
    return gm


def torchs(gm: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    halves: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(gm, None, num_fwd_outputs=1)
    return halves


def values() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size) / 8 for size in SIZES]


def described(gm: fx.GraphModule) -> list[tuple[str, str, str, dict[str, object]]]:
    return [(n.name, n.op, str(n.args), dict(n.meta)) for n in gm.graph.nodes]


def test_a_copy_is_the_same_and_its_own() -> None:
    gm = joint_graph()
    before, made = described(gm), copy_of(gm)
    assert described(made) == before
    mark(made, ["gelu"])
    torchs(made)
    assert described(gm) == before


def test_halves_put_together_give_what_they_gave() -> None:
    forward, backward = torchs(joint_graph())
    gm, late = joined(forward, backward, 1)
    gm.graph.lint()
    loss, *saved = forward(*values())
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    assert names[-1] == "tangents_1"
    wanted = [loss, *backward(*saved, torch.ones(()))]
    got = gm(*values(), torch.ones(()))
    assert all(map(torch.equal, got, wanted))
    assert set(late.values()) <= {node.name for node in gm.graph.nodes}
    assert set(late) == {n.name for n in backward.graph.nodes if n.op not in ("placeholder", "output")}


def test_both_halves_as_one_problem_have_the_peak_of_the_cut() -> None:
    made = cut(joint_graph(), torchs, Marks(), JUDGE)
    both = whole(made, JUDGE)
    assert peak_memory(both.problem, both.problem.original_order)[0] == made.peak_bytes
    assert both.late
    assert both.may_run_again
    assert not both.late & both.may_run_again


def test_a_weight_that_is_saved_as_a_view_of_itself_stays() -> None:
    with FakeTensorMode():
        x, weight = torch.empty(4, 1024), torch.empty(1024 * 1024)
    forward, backward = fx.Graph(), fx.Graph()
    aten = torch.ops.aten

    def call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = target(*fx.node.map_arg(args, lambda u: u.meta["val"]))
        return node

    def given(graph: fx.Graph, name: str, value: Tensor) -> fx.Node:
        node = graph.placeholder(name)
        node.meta["val"] = value
        return node

    whole_x, whole_weight = given(forward, "primals_1", x), given(forward, "primals_2", weight)
    view = call(forward, aten.view.default, whole_weight, [1024, 1024])
    forward.output((call(forward, aten.mm.default, whole_x, view), view))
    saved, tangent = given(backward, "view_default", view.meta["val"]), given(backward, "tangents_1", x)
    grad = call(backward, aten.mm.default, tangent, saved)
    backward.output((call(backward, aten.mm.default, call(backward, aten.t.default, grad), tangent), None))
    halves = [fx.GraphModule(torch.nn.Module(), graph) for graph in (forward, backward)]
    made = cut(halves[0], lambda gm: (halves[0], halves[1]), Marks(), JUDGE)
    row, square = 4 * 1024 * 4, 1024 * 1024 * 4
    assert made.peak_bytes == 2 * square + 3 * row + row  # its gradient beside it, x, tangents, grad; what was given
    assert made.saved_bytes == 0


@pytest.mark.slow
def test_more_runs_again_for_a_lower_limit() -> None:
    gm = joint_graph()
    before = described(gm)
    found = [fit_joint(gm, torchs, JUDGE, Question(memory_limit=limit)) for limit in ("100%", "85%", "70%")]
    assert described(gm) == before
    assert [one.fits for one in found] == [True, True, True]
    peaks, saved = [one.best.peak_bytes for one in found], [one.best.saved_bytes for one in found]
    assert peaks[0] > peaks[1] > peaks[2]
    assert saved[0] > saved[1] > saved[2]
    assert found[0].best is found[0].before
    assert found[0].tried == 1
    again = fit_joint(gm, torchs, JUDGE, Question(memory_limit="70%"))
    assert again.best.marks == found[2].best.marks


def test_what_a_kernel_keeps_in_registers_takes_no_memory() -> None:
    graph = fx.Graph()
    chain = [graph.placeholder("x")]
    for _ in range(3):
        chain.append(graph.call_function(torch.ops.aten.sin.default, (chain[-1],)))
    graph.output((chain[-1],))
    with FakeTensorMode():
        for node in chain:
            node.meta["val"] = torch.empty(1024)
    assert in_registers(graph) == {"sin_default", "sin_default_1"}
    problem = without_registers(lift(graph).problem, in_registers(graph))
    assert [one.bytes for one in problem.storages] == [4096, 0, 0, 4096]


def test_gathers_that_run_again_are_found_by_their_checkpoint() -> None:
    graph, c10d = fx.Graph(), torch.ops._c10d_functional

    def call(region: int, target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": region}
        return node

    gather = call(1, c10d.all_gather_into_tensor.default, graph.placeholder("x"), 2, "0")
    other = call(2, torch.ops.aten.sin.default, call(1, c10d.wait_tensor.default, gather))
    graph.output((call(2, c10d.all_gather_into_tensor.default, other, 2, "0"),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    assert gathers_again(gm) == [frozenset({"all_gather_into_tensor_default", "wait_tensor_default"})]
    mark(gm, (), ["wait_tensor_default"])
    assert gathers_again(gm) == [frozenset({"all_gather_into_tensor_default"})]
