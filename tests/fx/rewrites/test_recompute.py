"""Nodes of a graph run again: results bitwise, the lifted graph is the rewritten problem, refusals word by word."""

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fit import fit
from overlap_sched.fx import lift
from overlap_sched.fx.rewrites import prepare, rerunnable, rewrite_graph
from overlap_sched.options import Options
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Recompute, Rewrite
from tests.support.fit_graphs import training_step
from tests.support.fx_graphs import tensors, trace
from tests.support.rewrite_graphs import by_name, described, refusal


def results(gm: fx.GraphModule) -> list[Tensor]:
    """What a graph returns, and its inputs afterwards: weights are updated in place."""
    inputs = tensors(gm)
    return [*gm(*inputs), *inputs]


def fitted(gm: fx.GraphModule, share: float) -> tuple[Rewrite, ...]:
    lifted = lift(gm)
    found = fit(
        lifted.problem,
        Prices(lifted.model),
        Options(allocator="none"),
        memory_limit=int(share * max_bytes(gm)),
        kinds=("recompute",),
        rerun=rerunnable(gm),
    )
    assert found.fits
    assert found.fell_back is None
    return found.best.rewrites


def max_bytes(gm: fx.GraphModule) -> int:
    from overlap_sched.judge.validate import peak_memory

    problem = lift(gm).problem
    return peak_memory(problem, problem.original_order)[0]


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("share", [0.9, 0.8, 0.75])
def test_a_fitted_step_gives_the_same_bits_and_needs_less(share: float) -> None:
    gm, original = training_step(), training_step()
    rewrites = fitted(gm, share)
    assert rewrites
    rewrite_graph(gm, rewrites)
    gm.graph.lint()
    for got, want in zip(results(gm), results(original), strict=True):
        assert torch.equal(got, want)
    assert max_bytes(gm) <= share * max_bytes(original) * 1.02


def test_the_rewritten_graph_lifted_is_the_rewritten_problem() -> None:
    gm = training_step()
    rewrites = fitted(gm, 0.8)
    expected = apply(lift(gm).problem, rewrites, Prices(Roofline()))
    rewrite_graph(gm, rewrites)
    assert by_name(lift(gm).problem) == by_name(expected)


def test_undone_the_graph_is_as_it_was() -> None:
    gm = training_step()
    rewrites = fitted(gm, 0.8)
    before = described(gm.graph)
    prepare(gm, rewrites).undo()
    assert described(gm.graph) == before


def test_a_weight_is_updated_behind_all_that_reads_it_again() -> None:
    def program(x: Tensor, w: Tensor) -> list[Tensor]:
        y = x @ w
        z = y.exp().sum()
        late = (y * 2.0).sum() + z
        w.add_(1.0)
        return [late, z]

    gm = trace(program, (4, 4), (4, 4))
    want = results(gm)
    rewrite_graph(gm, [Recompute(("mm",), ("mul",))])
    names = [node.name for node in gm.graph.nodes]
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


@pytest.mark.parametrize(
    ("rewrite", "text"),
    [
        (Recompute(("rand_like",), ("mul",)), "'rand_like' cannot run again: it draws random numbers."),
        (Recompute(("rand_like",), ("mm",)), "'mm' does not take 'rand_like', or is an output."),
        (
            Recompute(("mm",), ("mul", "add")),
            "'mm' cannot run again: 'add_' writes to what it reads before that.",
        ),
        (Recompute(("clone",), ("mul_",)), "'clone' cannot run again: it gives what something writes to."),
        (Recompute(("x_1",), ("mm",)), "'x_1' cannot run again: it is an input."),
        (Recompute(("mm",), ()), "running again wants nodes and users, each once: mm for ."),
    ],
)
def test_refusals(rewrite: Recompute, text: str) -> None:
    gm = trace(hazards, (4, 4), (4, 4))
    assert refusal(gm, [rewrite]) == text


def test_what_may_run_again() -> None:
    gm = trace(hazards, (4, 4), (4, 4))
    known = rerunnable(gm)
    assert {"mm", "mul", "add", "add_1"} <= known
    assert known.isdisjoint({"x_1", "w_1", "rand_like", "add_", "clone", "mul_", "output"})


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(RewriteError, match="there is no node 'nothing' to rewrite"):
        prepare(training_step(), [Recompute(("nothing",), ("mm",))])
