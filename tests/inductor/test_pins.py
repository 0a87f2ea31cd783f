"""Pins in a model's code: in the forward and the backward that Inductor compiles, and in the keys of torch's caches."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import overlap_sched
from overlap_sched import Options, pinned
from overlap_sched.judge.validate import pin_violation
from tests.support.inductor.models import RANKS, SLOW_NETWORK, gathered

pytestmark = pytest.mark.usefixtures("ranks")


class Layer(nn.Module):
    """A gathered weight, in a block with a pin."""

    def __init__(self, pin: str, width: int = 32) -> None:
        super().__init__()
        self.pin, self.weight = pin, nn.Parameter(torch.randn(width // RANKS, width) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with pinned(self.pin):
            weight = gathered(self.weight, dist.group.WORLD.group_name, RANKS)
        return torch.nn.functional.silu(x @ weight)


class Layers(nn.Module):
    """Three of them."""

    def __init__(self, pin: str, again: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again = again
        self.layers = nn.ModuleList(Layer(pin) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x.square().sum()


def compiled_step(pin: str, again: bool = False, **changed: Any) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """The results of a step, and what was reported of its graphs."""
    torch._dynamo.reset()
    counters.clear()
    overlap_sched.clear_reports()
    options = Options(strict=True, headroom="1GiB", **changed)
    model = Layers(pin, again)
    settings = overlap_sched.inductor_options(options, model=SLOW_NETWORK)
    x = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).requires_grad_()
    torch.compile(model, fullgraph=True, options=settings)(x).backward()
    return [x.grad, *(p.grad for p in model.parameters())], overlap_sched.reports()


@pytest.fixture(scope="module")
def tag() -> Iterator[None]:
    """torch's caches, empty."""
    with (
        torch._inductor.config.patch(fx_graph_cache=True),
        torch.compiler.config.patch(cache_key_tag=f"overlap_sched test {uuid4()}"),
    ):
        yield
    torch._dynamo.reset()


@pytest.mark.private
def test_blocks_are_pinned_in_both_graphs_and_other_pins_are_other_code(ranks: None, tag: None) -> None:
    results, apart = compiled_step("apart")
    assert len(apart) == 2
    for report in apart:
        problem = report.report.schedule.problem
        launches = [node for node in problem.nodes if node.op.startswith(("all_gather", "reduce_scatter"))]
        assert [node.marks for node in launches] == [("apart",)] * 3
        assert {node.module for node in launches} == {"layers.0", "layers.1", "layers.2"}
        assert pin_violation(problem, report.report.schedule.order, ()) is None
    other, far = compiled_step("in flight 1GiB")
    assert counters["inductor"]["fxgraph_cache_hit"] == 0
    assert any(
        pin_violation(a.report.schedule.problem, b.report.schedule.order, ()) for a, b in zip(apart, far, strict=True)
    )
    again, none = compiled_step("apart")
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
    assert none == ()
    for one in (other, again):
        assert all(map(torch.equal, results, one))
