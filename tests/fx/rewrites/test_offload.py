"""Values of a graph go to the host and come back: bitwise on a CPU by copies; torch's operators, lifted, for CUDA."""

import pytest
import torch
from torch import Tensor

from overlap_sched.cost import Roofline
from overlap_sched.fit import fit
from overlap_sched.fx import lift
from overlap_sched.fx.rewrites import prepare, rerunnable, rewrite_graph
from overlap_sched.judge.validate import peak_memory
from overlap_sched.transform.apply import apply
from overlap_sched.transform.host import PCIE_5
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Offload
from tests.support.fit_graphs import training_step
from tests.support.fx_graphs import tensors, trace
from tests.support.rewrite_graphs import by_name, described, refusal

pytest.importorskip("torch._functorch._activation_offloading.offload_ops")


@pytest.mark.slow
@pytest.mark.private
def test_a_step_whose_values_go_to_the_host_gives_the_same_bits() -> None:
    gm, original = training_step(), training_step()
    lifted = lift(gm)
    peak, _ = peak_memory(lifted.problem, lifted.problem.original_order)
    found = fit(lifted.problem, Prices(lifted.model), memory_limit=int(0.8 * peak), rerun=rerunnable(gm))
    assert any(isinstance(one, Offload) for one in found.best.rewrites)
    rewrite_graph(gm, found.best.rewrites)
    gm.graph.lint()
    for run, inputs in ((gm, tensors(gm)), (original, tensors(original))):
        run.results = [*run(*inputs), *inputs]
    for got, want in zip(gm.results, original.results, strict=True):
        assert torch.equal(got, want)


def on_cuda(x: Tensor, y: Tensor) -> list[Tensor]:
    a = x @ y
    view = a.t()
    b = a.exp() + view
    c = (b @ y) @ y
    return [c + view, c.sum()]


REWRITE = Offload("mm", ("add_1",), ("t",))


def test_torchs_operators_lifted_are_the_rewritten_problem() -> None:
    gm = trace(on_cuda, (64, 64), (64, 64), device="cuda")
    expected = apply(lift(gm).problem, [REWRITE], Prices(Roofline(), host=PCIE_5))
    rewrite_graph(gm, [REWRITE])
    gm.graph.lint()
    lifted = lift(gm).problem
    assert by_name(lifted) == by_name(expected)
    assert dict(lifted.groups) == dict(expected.groups)
    ao = torch.ops.ao
    assert [n.name for n in gm.graph.nodes if n.target is ao.offload.default] == ["offload_mm"]
    back = next(n for n in gm.graph.nodes if n.target is ao.reload.default)
    assert back.name == "reload_mm"
    assert back.args[2:] == ([64, 64], [64, 1])


def test_undone_the_graph_is_as_it_was() -> None:
    gm = trace(on_cuda, (64, 64), (64, 64), device="cuda")
    before = described(gm.graph)
    prepare(gm, [REWRITE]).undo()
    assert described(gm.graph) == before


@pytest.mark.parametrize(
    ("rewrite", "text"),
    [
        (Offload("t", ("add_1",)), "'t' is no node that makes a storage of its own: what makes one can be offloaded."),
        (Offload("mm", ("mm_1",)), "'mm_1' does not take 'mm', or is an output."),
        (
            Offload("nothing", ("add_1",)),
            "there is no node 'nothing' to rewrite: it is not in the graph, or gone by now.",
        ),
        (
            Offload("mm", ("add_1",), ("t", "t")),
            "running again wants nodes and users, each once: mm, t, t for add_1.",
        ),
    ],
)
def test_refusals(rewrite: Offload, text: str) -> None:
    gm = trace(on_cuda, (64, 64), (64, 64), device="cuda")
    assert refusal(gm, [rewrite]) == text
