"""A graph fitted in place: the same bits in less memory; or as it was, and one warning.

Random steps, random plans of all kinds of rewrites, random orders: results stay, and peaks are as the judge says.
"""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Link, Network, Roofline
from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError
from overlap_sched.fx import fitting, lift
from overlap_sched.fx.apply import schedule_graph
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.fx.rewrites import prepare
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options
from overlap_sched.transform.rewrites import Bucket, Fission, Recompute
from tests.support.fit_graphs import training_step
from tests.support.fx_graphs import RANKS, random_order, sharded_step, tensors
from tests.support.lockstep import run_lockstep
from tests.support.random_steps import LiveBytes, copied, problem_of, random_plan, random_step
from tests.support.rewrite_graphs import described
from tests.support.traced_step import TINY, joint_graph, run_step, tiny_inputs, with_updates


def peak_of(gm: fx.GraphModule) -> int:
    problem = lift(gm).problem
    return peak_memory(problem, problem.original_order)[0]


def results(gm: fx.GraphModule) -> list[Tensor]:
    inputs = tensors(gm)
    return [*gm(*inputs), *inputs]


def test_a_fitted_graph() -> None:
    gm, original = training_step(), training_step()
    limit = int(0.8 * peak_of(original))
    found = fit_graph(gm, memory_limit=limit)
    assert any(isinstance(one, Recompute) for one in found.best.rewrites)
    assert peak_of(gm) == found.best.peak_bytes <= limit
    assert [node.name for node in gm.graph.nodes] == found.best.problem.names(found.best.order)
    for got, want in zip(results(gm), results(original), strict=True):
        assert torch.equal(got, want)


@pytest.mark.private
def test_a_limit_that_cannot_be_kept() -> None:
    gm = training_step()
    before = described(gm.graph)
    with pytest.warns(OverlapSchedWarning, match=r"leaves '.*' as it is: no plan found keeps the limit$"):
        fit_graph(gm, memory_limit="1B")
    assert described(gm.graph) == before


@pytest.mark.parametrize("error", [RewriteError("not here."), KeyError("a bug")])
def test_whatever_fails_leaves_the_graph_and_warns_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    gm = training_step()
    before = described(gm.graph)
    monkeypatch.setattr(fitting, "prepare", fails)
    limit = int(0.8 * peak_of(gm))
    with pytest.warns(OverlapSchedWarning, match=f"leaves '.*' as it is: {error}$") as said:
        fit_graph(gm, memory_limit=limit)
    assert len(said) == 1
    assert described(gm.graph) == before
    with pytest.raises(type(error)):
        fit_graph(gm, Options(strict=True), memory_limit=limit)


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(OptionsError, match="'shrink'; known are 'recompute', 'offload', 'fission', 'batch'"):
        fit_graph(training_step(), memory_limit="1B", kinds=("shrink",))


@pytest.mark.slow
def test_the_step_in_parts_along_its_batch() -> None:
    gm = with_updates(joint_graph(TINY))
    limit = int(0.8 * peak_of(gm))
    found = fit_graph(gm, memory_limit=limit, kinds=("batch",), effort=0)
    assert isinstance(found.best.rewrites[0], Fission)
    assert peak_of(gm) == found.best.peak_bytes <= limit
    outcomes = []
    for step in (gm, with_updates(joint_graph(TINY))):
        weights, batch = tiny_inputs(TINY)
        outcomes.append([run_step(step, weights, batch), *weights])
    for got, want in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.private
def test_collectives_of_a_fitted_graph_are_rewritten_within_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = sharded_step()
    limit = int(0.9 * peak_of(gm))
    slow = Roofline(network=Network(Link(500.0, 1e9), Link(500.0, 1e9)))
    options = Options(rewrites=("bucket",), strict=True)
    found = fit_graph(gm, options, memory_limit=limit, kinds=("recompute",), model=slow, effort=1)
    kinds = [type(one) for one in found.best.rewrites]
    assert kinds[0] is Recompute
    assert kinds[-1] is Bucket
    assert peak_of(gm) == found.best.peak_bytes <= limit

    def breaks(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(fitting, "plan_lifted", breaks)
    gm = sharded_step()
    with pytest.warns(OverlapSchedWarning, match=r"leaves the collectives of '.*' as they are: no$"):
        fit_graph(gm, replace(options, strict=False), memory_limit=limit, kinds=("recompute",), effort=1)
    assert peak_of(gm) <= limit


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"headroom": "1GiB"}, r"{}\(\) takes no headroom: .*Write {}\(gm, Options\(headroom='1GiB'\)\)"),
        ({"donate": ()}, r"{}\(\) takes no donate\. Did you mean donated"),
        ({"model": "A100"}, "model is 'A100'"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(given: dict[str, object], said: str) -> None:
    for call, more in ((schedule_graph, {}), (fit_graph, {"memory_limit": "1GiB"})):
        with pytest.raises(OptionsError, match=f"^{said.format(call.__name__, call.__name__)}"):
            call(sharded_step(), **more, **given)


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


@pytest.mark.private
def test_fitted_steps_do_what_they_did() -> None:
    assert "Fission" in check(1)


@pytest.mark.slow
def test_many_of_them() -> None:
    kinds = set().union(*map(check, (0, *range(2, 10), 13, 18)))  # the last two have parts of parts
    assert kinds >= {"Fission", "Offload", "Recompute"}
    assert kinds & {"Bucket", "Keep", "Regather", "Split", "Stream"}
