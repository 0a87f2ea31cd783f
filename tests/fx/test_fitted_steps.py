"""Random steps, random plans of all kinds of rewrites, random orders: results stay, and peaks are as the judge says."""

import random

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.fx.rewrites import prepare
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.transform.fission import Fission
from tests.support.fx_graphs import RANKS, random_order
from tests.support.lockstep import run_lockstep
from tests.support.random_steps import LiveBytes, copied, problem_of, random_plan, random_step


def given(gm: fx.GraphModule, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    shapes = [node.meta["val"].shape for node in gm.graph.find_nodes(op="placeholder")]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def outcome(gm: fx.GraphModule) -> list[Tensor]:
    """What all ranks return, and their weights."""
    inputs = [given(gm, rank) for rank in range(RANKS)]
    results = run_lockstep(gm, inputs, {"0": [list(range(RANKS))], "0/2": [list(range(RANKS))]})
    return [x for rank in (*results, *inputs) for x in rank]


def check(seed: int) -> set[str]:
    """One random step; the kinds of rewrites that were done."""
    rng = random.Random(seed)
    sharded = rng.random() < 0.5
    gm = random_step(rng, sharded)
    made = random_plan(rng, gm)
    assert violation(made.problem, made.problem.original_order) is None
    order = random_order(made.problem, rng)
    after = copied(gm)
    prepare(after, made.rewrites, made.problem.names(order)).commit()
    after.graph.lint()
    for got, want in zip(outcome(after), outcome(gm), strict=True):
        if any(isinstance(one, Fission) for one in made.rewrites):  # sums are split, and columns of products
            assert (got - want).abs().max() <= 1e-5 * want.abs().max(), (seed, made.rewrites)
        else:
            assert torch.equal(got, want), (seed, made.rewrites)
    kinds = {type(one).__name__ for one in made.rewrites}
    if "Offload" not in kinds:  # on a CPU, the host's copies are counted, too
        check_peaks(after, peak_memory(made.problem, order)[0], real=not sharded)
    return kinds


def check_peaks(gm: fx.GraphModule, predicted: int, real: bool) -> None:
    """The judge says the same of the rewritten problem, and of the problem of the rewritten graph; and so it is."""
    problem = problem_of(gm)
    assert peak_memory(problem, problem.original_order)[0] == predicted
    if real:
        inputs = given(gm, 0)
        with LiveBytes(inputs) as live:
            gm(*inputs)
        assert live.most == predicted


@pytest.mark.slow
@pytest.mark.private
def test_fitted_steps_do_what_they_did() -> None:
    assert "Fission" in check(1)


@pytest.mark.slow
def test_many_of_them() -> None:
    kinds = set().union(*map(check, (0, *range(2, 10), 13, 18)))  # the last two have parts of parts
    assert kinds >= {"Fission", "Offload", "Recompute"}
    assert kinds & {"Bucket", "Keep", "Regather", "Split", "Stream"}
