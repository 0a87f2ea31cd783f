"""What forward saved and others hold on is never freed in backward, whatever its name."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd

import overlap_sched
from overlap_sched import Options
from overlap_sched.problem import Kind, Problem

pytestmark = pytest.mark.usefixtures("clean")


def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``weight`` is flat: what is saved of it is a view. Gradients are scattered in backward."""
    hidden = torch.tanh(all_gather_tensor_autograd(x, 0, dist.group.WORLD) @ weight.view(16, 16))
    return torch.sin(hidden @ weight.view(16, 16))


def backward_problem(stage: str, retain: bool = False) -> Problem:
    with overlap_sched.enabled(Options(strict=True), stage=stage):
        x, weight = torch.randn(8, 16), torch.randn(256, requires_grad=True)
        compiled = torch.compile(step, fullgraph=True, dynamic=False)
        compiled(x.requires_grad_(), weight).sum().backward(retain_graph=retain)
        (report,) = [one.report for one in overlap_sched.reports() if one.name.startswith("backward")]
    assert report.schedule is not None
    return report.schedule.problem


def saved(problem: Problem) -> dict[str, bool]:
    """Per input of backward but gradients whether it stays."""
    nodes = [node for node in problem.nodes if node.kind is Kind.INPUT and not node.name.startswith("tangents")]
    return {node.name: all(problem.storages[s].pinned for s in node.alloc) for node in nodes}


@pytest.mark.private
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_a_weight_saved_as_a_view_stays_and_what_forward_computed_goes(stage: str) -> None:
    inputs = saved(backward_problem(stage))
    assert {"mm_1", "tanh"} <= {name for name, stays in inputs.items() if not stays}
    (weight,) = [name for name, stays in inputs.items() if stays]
    assert not weight.startswith("primals")  # torch's own names would not tell


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_what_is_retained_stays(stage: str) -> None:
    inputs = saved(backward_problem(stage, retain=True))
    assert inputs
    assert all(inputs.values())
