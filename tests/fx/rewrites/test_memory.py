"""Nodes that run again, values that go to the host: results bitwise, the lifted graph is the rewritten problem."""

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fit import fit
from overlap_sched.fx import lift
from overlap_sched.fx.rewrites import prepare, rerunnable, rewrite_graph
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Offload, Recompute, Rewrite
from tests.support.fit_graphs import training_step
from tests.support.fx_graphs import tensors, trace
from tests.support.rewrite_graphs import by_name, described, refusal


def results(gm: fx.GraphModule) -> list[Tensor]:
    """What a graph returns, and its inputs afterwards: weights are updated in place."""
    inputs = tensors(gm)
    return [*gm(*inputs), *inputs]


def test_a_fitted_step_lifted_is_the_rewritten_problem() -> None:
    gm = training_step()
    lifted = lift(gm)
    limit = int(0.8 * peak_memory(lifted.problem, lifted.problem.original_order)[0])
    prices, rerun, kinds = Prices(lifted.model), rerunnable(gm), ("recompute",)
    found = fit(lifted.problem, prices, Options(allocator="none"), memory_limit=limit, kinds=kinds, rerun=rerun)
    assert found.live_bytes_fit
    expected = apply(lifted.problem, found.best.rewrites, prices)
    rewrite_graph(gm, found.best.rewrites)
    assert by_name(lift(gm).problem) == by_name(expected)


def test_a_weight_is_updated_behind_all_that_reads_it_again() -> None:
    def program(x: Tensor, w: Tensor) -> list[Tensor]:
        y = x @ w
        z = y.exp().sum()
        late = (y * 2.0).sum() + z
        w.add_(1.0)
        return [late, z]

    gm, again = trace(program, (4, 4), (4, 4)), Recompute(("mm",), ("mul",))
    want = results(gm)
    pending = prepare(gm, [again])
    names = [node.name for node in pending.order]
    pending.undo()
    early = ["x_1", "w_1", "mm", "add_", *(name for name in names if name not in ("x_1", "w_1", "mm", "add_"))]
    with pytest.raises(RewriteError, match="the order has 'add_' before 'again_mm'"):
        prepare(gm, [again], early)
    rewrite_graph(gm, [again])
    assert names.index("again_mm") < names.index("add_")
    for got, expected in zip(results(gm), want, strict=True):
        assert torch.equal(got, expected)


def hazards(x: Tensor, w: Tensor) -> list[Tensor]:
    y = x @ w
    noise = torch.rand_like(x)
    w.add_(1.0)
    mine = x.clone()
    mine.mul_(2.0)
    return [y * noise, y + w, mine, noise + 1.0]


def on_cuda(x: Tensor, y: Tensor) -> list[Tensor]:
    a = x @ y
    view = a.t()
    b = a.exp() + view
    c = (b @ y) @ y
    return [c + view, c.sum()]


OFFLOAD = Offload("mm", ("add_1",), ("t",))


def test_torchs_operators_lifted_are_the_rewritten_problem() -> None:
    pytest.importorskip("torch._functorch._activation_offloading.offload_ops")
    gm = trace(on_cuda, (64, 64), (64, 64), device="cuda")
    before = described(gm.graph)
    assert refusal(gm, [OFFLOAD]) is None
    assert described(gm.graph) == before
    expected = apply(lift(gm).problem, [OFFLOAD], Prices(Roofline()))
    rewrite_graph(gm, [OFFLOAD])
    gm.graph.lint()
    lifted = lift(gm).problem
    assert by_name(lifted) == by_name(expected)
    assert dict(lifted.groups) == dict(expected.groups)
    ao = torch.ops.ao
    assert [n.name for n in gm.graph.nodes if n.target is ao.offload.default] == ["offload_mm"]
    back = next(n for n in gm.graph.nodes if n.target is ao.reload.default)
    assert back.name == "reload_mm"
    assert back.args[2:] == ([64, 64], [64, 1])


@pytest.mark.parametrize(
    ("rewrite", "text"),
    [
        (Recompute(("rand_like",), ("mul",)), "'rand_like' cannot run again: it draws random numbers"),
        (Recompute(("mm",), ("mul", "add")), "'mm' cannot run again: 'add_' writes to what it reads"),
        (Recompute(("clone",), ("mul_",)), "'clone' cannot run again: it gives what something writes to"),
        (Recompute(("x_1",), ("mm",)), "'x_1' cannot run again: it is an input"),
        (Offload("t", ("add_1",)), "'t' is no node that makes a storage of its own"),
        (Offload("mm", ("add_1",), ("exp",)), "'exp' is no view of what 'mm' gives"),
        (Offload("mm", ("add_1",), ("t", "t")), "each once: mm, t, t for add_1."),
    ],
)
def test_what_is_refused(rewrite: Rewrite, text: str) -> None:
    offload = isinstance(rewrite, Offload)
    gm = trace(on_cuda if offload else hazards, (64, 64), (64, 64), device="cuda" if offload else "cpu")
    assert text in str(refusal(gm, [rewrite]))


def test_what_may_run_again() -> None:
    known = rerunnable(trace(hazards, (4, 4), (4, 4)))
    assert {"mm", "mul", "add", "add_1"} <= known
    assert known.isdisjoint({"x_1", "w_1", "rand_like", "add_", "clone", "mul_", "output"})
