"""Forward, loss and backward in one graph: what lives how long, and orders that keep the results."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from overlap_sched import Options
from overlap_sched.fx import Lifted, lift, schedule_graph
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Kind
from tests.support.fx_graphs import TIMINGS, Timing, outcome, reordered, same, trace
from tests.support.whole_step import recomputed, whole_step

STEPS = (whole_step, recomputed)


def users(lifted: Lifted, maker: str) -> list[str]:
    """The nodes that use what a node allocates, in order."""
    nodes = lifted.problem.nodes
    (storage,) = next(node.alloc for node in nodes if node.name == maker)
    return [node.name for node in nodes if storage in node.use]


def test_a_gathered_weight_lives_from_the_forward_to_its_last_use_in_the_backward() -> None:
    assert users(lift(whole_step()), "all_gather_into_tensor_1") == ["wait_tensor_1", "mm_1", "t_1", "mm_3"]


def test_gradients_and_the_loss_live_to_the_end() -> None:
    lifted = lift(whole_step())
    for maker in ("sum_1", "reduce_scatter_tensor", "reduce_scatter_tensor_1"):
        assert users(lifted, maker)[-1] == "output"


def test_all_inputs_of_a_step_stay() -> None:
    problem = lift(whole_step()).problem
    inputs = [s for node in problem.nodes if node.kind is Kind.INPUT for s in node.alloc]
    assert len(inputs) == 3
    assert all(problem.storages[s].pinned for s in inputs)


def test_what_is_recomputed_has_memory_of_its_own() -> None:
    """A recomputed node carries the ``val`` of the first; it is another tensor all the same."""
    lifted = lift(recomputed())
    assert users(lifted, "all_gather_into_tensor_1") == ["wait_tensor_1", "mm_1"]
    assert users(lifted, "all_gather_into_tensor_1_again") == ["wait_tensor_1_again", "t_1", "mm_3"]
    assert users(lifted, "relu") == ["detach_2", "mm_1", "t", "mm_2"]
    assert users(lifted, "relu_again") == ["detach_2_again", "detach_4", "threshold_backward"]
    assert dict(lifted.notes) == {}


def test_a_recomputed_wait_is_that_of_the_recomputed_collective() -> None:
    nodes = lift(recomputed()).problem.nodes
    launch_of = {n.name: nodes[n.collective].name for n in nodes if n.collective is not None}
    assert launch_of["wait_tensor_1"] == "all_gather_into_tensor_1"
    assert launch_of["wait_tensor_1_again"] == "all_gather_into_tensor_1_again"


def test_an_original_that_is_used_after_its_copy_is_itself() -> None:
    """Here the value of the first node is shown again, behind that of its copy."""
    gm = recomputed()
    nodes = {node.name: node for node in gm.graph.nodes}
    nodes["threshold_backward"].replace_input_with(nodes["detach_4"], nodes["relu"])
    view = nodes["detach_4"]
    view.replace_input_with(nodes["detach_2_again"], nodes["relu"])
    nodes["t_2"].append(view)
    nodes["output"].args = ([*nodes["output"].args[0], view],)
    gm.graph.lint()
    lifted = lift(gm)
    assert users(lifted, "relu_again") == ["detach_2_again"]
    assert users(lifted, "relu")[-2:] == ["detach_4", "output"]


def test_recomputation_lowers_the_peak_that_is_planned_with() -> None:
    peaks = [
        peak_memory(lifted.problem, lifted.problem.original_order)[0] for lifted in (lift(make()) for make in STEPS)
    ]
    assert peaks[1] < peaks[0]


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("make", STEPS)
def test_a_scheduled_step_gives_the_same_results(make: Callable[[], fx.GraphModule], timing: Timing) -> None:
    gm = make()
    report = schedule_graph(gm, Options(strict=True), cost=lambda node: 100.0 if "mm" in str(node.target) else 1.0)
    assert report.changed
    assert report.schedule is not None
    assert report.schedule.scheduled.peak_bytes <= report.schedule.original.peak_bytes
    assert same(outcome(gm, timing), outcome(make(), "eager"))


@pytest.mark.slow
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("make", STEPS)
def test_any_valid_order_of_a_step_gives_the_same_results(make: Callable[[], fx.GraphModule], timing: Timing) -> None:
    wanted = outcome(make(), "eager")
    for seed in range(20):
        assert same(outcome(reordered(make(), random.Random(seed)), timing), wanted)


def test_what_offloading_frees_is_read_before() -> None:
    """torch's wait for an offload frees what was copied, which its schema does not say."""
    offloading = pytest.importorskip("torch._functorch._activation_offloading.offload_ops")
    assert offloading is not None
    ao = torch.ops.ao

    def offloaded(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x + 1
        early = kept * 2
        on_host = ao.wait_tensor(ao.offload(kept), kept)
        return on_host, early * 3

    problem = lift(trace(offloaded, (4, 4))).problem
    index = {node.name: v for v, node in enumerate(problem.nodes)}
    freed = next(v for name, v in index.items() if name.startswith("wait_tensor"))
    assert index["mul"] in problem.nodes[freed].deps
