"""MAGIS's networks, checked by their weights, and their steps, run on real tensors."""

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402

from llama_repro.workloads.convolutions import UNet, repeated_pixels  # noqa: E402
from llama_repro.workloads.models import WORKLOADS, Workload  # noqa: E402
from llama_repro.workloads.trace import joint_graph, step_problem, with_updates  # noqa: E402
from overlap_sched.cost import RTX_3090, RTX_3090_TF32  # noqa: E402
from overlap_sched.joint.graphs import copy_of  # noqa: E402
from overlap_sched.judge.liveness import peak_memory  # noqa: E402
from tests.support.steps import TINY, run_step, tiny_inputs  # noqa: E402

PUBLISHED = {
    # torchvision's 25,557,032 without batch norm and the bias of the last layer
    "ResNet-50": 25_557_032 - 53_120 - 1_000,
    # google's 109,482,240 without embeddings (and their norm), pooler, and per layer biases and norms
    "BERT-base": 109_482_240 - (30_522 + 512 + 2 + 2) * 768 - 590_592 - 12 * 9_984,
    # torchvision's 86,567,656 without positions, class token, projection of patches, biases and norms
    "ViT-base/16": 86_567_656 - 197 * 768 - 768 - 590_592 - 12 * 9_984 - 1_536 - 1_000,
    # EleutherAI's 1,315,575,808 without embeddings, biases and norms
    "GPT-Neo-1.3B": 1_315_575_808 - (50_257 + 2_048) * 2_048 - 24 * 20_480 - 4_096,
}
"""Weights of the published networks without what MAGIS leaves out."""


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_networks_have_the_weights_of_the_published_ones(workload: Workload) -> None:
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in workload.build().parameters())
    assert weights == workload.weights == PUBLISHED.get(workload.name, workload.weights)


def test_the_larger_language_model_is_as_large_as_the_published_one_without_embeddings() -> None:
    published = 32 * (4 * 2_560**2 + 3 * 2_560 * 6_826)  # Cerebras's configuration: gated, 6,826 wide
    assert WORKLOADS[-1].weights == pytest.approx(published, rel=1e-4)


def test_the_nets_of_images_end_in_images_of_their_size() -> None:
    for workload in WORKLOADS[3:5]:
        with torch.device("meta"):
            assert workload.build()(torch.empty(2, 1, 64, 64)).shape == (2, 1, 64, 64)


def test_a_step_updates_the_weights_as_training_does() -> None:
    step = with_updates(joint_graph(TINY))
    weights, batch = tiny_inputs()
    trained = [weight.clone() for weight in weights]
    loss = run_step(step, trained, batch)

    model = TINY.build()
    with torch.no_grad():
        for mine, given in zip(model.parameters(), weights, strict=True):
            mine.copy_(given)
    expected = ((model(batch[0]) - batch[1]) ** 2).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    assert any(not torch.equal(before, after) for before, after in zip(weights, trained, strict=True))
    for mine, after in zip(model.parameters(), trained, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.detach() - 0.01 * mine.grad, after)


def test_gradients_do_not_pile_up() -> None:
    joint = joint_graph(TINY)
    pile = step_problem(TINY, copy_of(joint))
    step = with_updates(joint)
    problem = step_problem(TINY, step)
    names = [node.name for node in step.graph.nodes]
    updates = [at for at, node in enumerate(step.graph.nodes) if node.target is torch.ops.aten.add_.Tensor]
    assert len(updates) == 6 * 2
    assert updates[0] < len(names) * 0.7  # among the steps of backward, not behind them
    assert peak_memory(problem, problem.original_order)[0] < peak_memory(pile, pile.original_order)[0]
    assert problem.nodes[-1].kind == "output"


def test_an_update_comes_behind_all_that_reads_the_weight() -> None:
    step = with_updates(joint_graph(TINY))
    updated: set[int] = set()
    for node in step.graph.nodes:
        read = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
        assert not {value.untyped_storage()._cdata for value in read} & updated
        if node.target is torch.ops.aten.add_.Tensor:
            updated.add(node.args[0].meta["val"].untyped_storage()._cdata)
    assert len(updated) == 12


def test_an_update_waits_for_a_later_view_of_the_weight() -> None:
    graph = fx.Graph()
    weight, given, tangent = (graph.placeholder(name) for name in ("primals_1", "primals_2", "tangents_1"))
    gradient = graph.call_function(torch.ops.aten.mul.Tensor, (given, tangent))
    view = graph.call_function(torch.ops.aten.view.default, (weight, [4]))
    loss = graph.call_function(torch.ops.aten.sum.default, (view,))
    graph.output((loss, gradient, None))
    value = torch.zeros(2, 2)
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(2, 2)
    weight.meta["val"], view.meta["val"] = value, value.view(4)
    step = with_updates(fx.GraphModule(torch.nn.Module(), graph))
    assert [node.name for node in step.graph.nodes][-4:] == ["view_default", "sum_default", "add__tensor", "output"]


def test_steps_are_priced_for_the_device_of_their_type() -> None:
    assert [w.device for w in WORKLOADS] == [RTX_3090_TF32] * 5 + [RTX_3090] * 2
    problem = step_problem(TINY, with_updates(joint_graph(TINY)))
    mm = next(node for node in problem.nodes if node.op == "aten.mm.default")
    assert mm.flops == 2 * 4 * 16 * 32 * 32
    assert mm.time_us == RTX_3090_TF32.kernel_us


@pytest.mark.nightly
def test_gradients_of_convolutions_are_steps_of_their_own() -> None:
    small = Workload("small", UNet, (1, 1, 16, 16), 0)
    step = with_updates(joint_graph(small))
    masks = [node.args[-1] for node in step.graph.nodes if node.target is torch.ops.aten.convolution_backward.default]
    assert masks.count([False, True, False]) == 20
    assert masks.count([True, False, False]) == 19  # none for the image
    torch.manual_seed(0)
    model = small.build()
    weights = [weight.detach().clone() for weight in model.parameters()]
    batch = [torch.randn(small.shape), torch.randn(small.shape)]
    loss = run_step(step, weights, batch)
    expected = ((model(batch[0]) - batch[1]) ** 2).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for mine, after in zip(model.parameters(), weights, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.detach() - 0.01 * mine.grad, after)


def test_pixels_are_repeated_as_nearest_does() -> None:
    images = torch.randn(2, 3, 4, 5)
    assert torch.equal(repeated_pixels(images), torch.nn.functional.interpolate(images, scale_factor=2, mode="nearest"))
