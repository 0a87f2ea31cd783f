"""A graph fitted in place: the same bits in less memory; or as it was, and one warning."""

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.errors import OverlapSchedWarning, RewriteError
from overlap_sched.fx import fitting, lift
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.options import Options
from overlap_sched.transform.rewrites import Recompute
from tests.support.fit_graphs import training_step
from tests.support.fx_graphs import tensors
from tests.support.rewrite_graphs import described


def peak_of(gm: fx.GraphModule) -> int:
    problem = lift(gm).problem
    return peak_memory(problem, problem.original_order)[0]


def results(gm: fx.GraphModule) -> list[Tensor]:
    inputs = tensors(gm)
    return [*gm(*inputs), *inputs]


def test_a_fitted_graph() -> None:
    gm, original = training_step(), training_step()
    limit = int(0.8 * peak_of(original))
    found = fit_graph(gm, memory_limit_bytes=limit)
    assert any(isinstance(one, Recompute) for one in found.best.rewrites)
    assert peak_of(gm) == found.best.peak_bytes <= limit
    assert [node.name for node in gm.graph.nodes] == found.best.problem.names(found.best.order)
    for got, want in zip(results(gm), results(original), strict=True):
        assert torch.equal(got, want)


def test_a_limit_that_cannot_be_kept() -> None:
    gm = training_step()
    before = described(gm.graph)
    with pytest.warns(OverlapSchedWarning, match=r"leaves '.*' as it is: no plan found keeps the limit$"):
        fit_graph(gm, memory_limit_bytes=1)
    assert described(gm.graph) == before


def test_a_plan_that_cannot_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RewriteError("not here.")

    gm = training_step()
    before = described(gm.graph)
    monkeypatch.setattr(fitting, "prepare", refuses)
    limit = int(0.8 * peak_of(gm))
    with pytest.warns(OverlapSchedWarning, match=r"leaves '.*' as it is: not here\.$"):
        fit_graph(gm, memory_limit_bytes=limit)
    assert described(gm.graph) == before
    with pytest.raises(RewriteError, match="not here"):
        fit_graph(gm, Options(strict=True), memory_limit_bytes=limit)
