"""Whole steps in parts along their batch: what they train is what they trained whole, and problem and graph agree."""

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Roofline
from overlap_sched.fit.planner import FitContext, Planner, begun_with
from overlap_sched.fx import lift
from overlap_sched.fx.rewrites import prepare, rerunnable, rewrite_graph
from overlap_sched.fx.rewrites.batches import batch_fissions
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Recompute
from tests.support.fx_graphs import trace
from tests.support.rewrite_graphs import by_name
from tests.support.steps import TINY, TINY_IMAGES, run_step, tiny_inputs
from tests.support.traced_step import Workload, joint_graph, with_updates

pytestmark = pytest.mark.slow
STEPS = {one.name: one for one in (TINY, TINY_IMAGES)}


def step_of(workload: Workload) -> fx.GraphModule:
    return with_updates(joint_graph(workload))


def trained(gm: fx.GraphModule, workload: Workload) -> list[Tensor]:
    weights, batch = tiny_inputs(workload)
    return [run_step(gm, weights, batch), *weights]


def check_trains_alike(after: fx.GraphModule, workload: Workload) -> None:
    for got, want in zip(trained(after, workload), trained(step_of(workload), workload), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_steps_in_parts_train_what_they_train_whole(name: str) -> None:
    workload = STEPS[name]
    gm = step_of(workload)
    found = batch_fissions(lift(gm))
    assert [one.parts for one in found] == [2, 4]  # a batch of 4
    for one in found:
        gm = step_of(workload)
        problem = lift(gm).problem
        want = apply(problem, [one], Prices(Roofline()))
        assert violation(want, want.original_order) is None
        rewrite_graph(gm, [one])
        gm.graph.lint()
        got = lift(gm).problem
        assert by_name(got) == by_name(want)
        whole, parts = (peak_memory(p, p.original_order)[0] for p in (problem, got))
        assert parts < whole
        check_trains_alike(gm, workload)


def test_weights_are_updated_behind_all_parts() -> None:
    """In every order of the problem, too: that it reads what is written later is a dependency of each part."""
    gm = step_of(TINY_IMAGES)
    (two, _) = batch_fissions(lift(gm))
    problem = apply(lift(gm).problem, [two], Prices(Roofline()))
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    updates = [node for node in problem.nodes if node.op.endswith("add_.Tensor")]
    readers = [ids[two.part(name, p)] for name in two.nodes if name.startswith("convolution") for p in range(2)]
    behind = {u for update in updates for u in update.deps}
    assert updates
    assert set(readers) <= behind | {u for v in readers for u in problem.successors[v] if u in readers} | behind
    rewrite_graph(gm, [two])
    names = [node.name for node in gm.graph.nodes]
    first = min(names.index(name) for name in names if name.startswith("add__"))
    assert all(names.index(two.part("convolution", p)) < first for p in range(2))


def test_values_of_parts_run_again_and_the_step_is_done_to_the_graph() -> None:
    gm = step_of(TINY)
    lifted = lift(gm)
    (two,) = batch_fissions(lifted, (2,))
    asked = FitContext(lifted.problem, Prices(lifted.model), Options(), ("recompute",), rerunnable(gm), None, 0)
    planner = Planner(asked, begun_with(asked, (two,)))
    found = planner.at(int(0.9 * planner.original.peak_bytes))
    assert found is not None
    first, *others = found.rewrites
    assert first == two
    assert any(name.startswith(two.name) for one in others if isinstance(one, Recompute) for name in one.nodes)
    prepare(gm, found.rewrites, found.problem.names(found.order)).commit()
    check_trains_alike(gm, TINY)


def program(x: Tensor, w: Tensor) -> Tensor:
    """Noise is drawn for the whole batch at once: it is not drawn in parts."""
    return ((x @ w).relu() * torch.rand_like(x)) @ w


def test_random_numbers_are_drawn_whole() -> None:
    gm = trace(program, (64, 64), (64, 64))
    for one in batch_fissions(lift(gm)):
        assert not any("rand" in name for name in one.nodes)


def test_a_graph_without_a_batch_has_none() -> None:
    gm = trace(lambda x: x.cumsum(0) @ x.cumsum(0).t(), (7, 7))
    assert batch_fissions(lift(gm)) == []
