"""Ways in which people compile: in each, results are bitwise those without us, and the reports say what happened.

A real process group (gloo) of one rank, so that the collectives in the code run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor.switch import NOT_RUN
from tests.support.inductor.models import FORWARD_GAINS, SLOW_NETWORK, Block

WIDTH = 32
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("world_of_one", "fresh"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # torch, at a graph break
]
Step = Callable[[], list[Tensor]]


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def on(**changed: Any) -> Any:
    options = {"headroom": "50%", "strict": True, **changed}
    return overlap_sched.enabled(Options(**options), model=SLOW_NETWORK)


def alone(step: Step) -> list[Tensor]:
    """Results without us."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    torch.manual_seed(0)
    results = step()
    torch._dynamo.reset()
    assert overlap_sched.reports() == ()
    return results


def scheduled(step: Step) -> list[Tensor]:
    """Results with us."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    torch.manual_seed(0)
    with on():
        return step()


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def assert_same(step: Step) -> None:
    """With us as without."""
    expected = alone(step)
    assert same(scheduled(step), expected)


def outcomes() -> list[tuple[str, bool]]:
    """Of each report, whether forward or backward, and whether the graph has another order now."""
    return [(report.name.split()[0], report.report.changed) for report in overlap_sched.reports()]


def train(model: nn.Module, compiled: Any, *rows: int) -> list[Tensor]:
    """Losses and gradients of one step for each batch size."""
    results = []
    for n in rows:
        model.zero_grad(set_to_none=True)
        x = torch.linspace(-1, 1, n * WIDTH).reshape(n, WIDTH).requires_grad_()
        loss = compiled(x).square().sum()
        loss.backward()
        results += [loss.detach(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    return results


class Plain(nn.Module):
    """Blocks without recomputation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(WIDTH, 1), Block(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def trained(*rows: int, **compile_arguments: Any) -> list[Tensor]:
    model = Plain()
    return train(model, torch.compile(model, fullgraph=True, **compile_arguments), *rows or (16,))


def test_a_compiled_optimizer_step() -> None:
    """Gradients are averaged in the same graph: an update writes its parameter behind the wait of its collective."""

    def step() -> list[Tensor]:
        model = Plain()
        parameters, momenta = list(model.parameters()), [torch.zeros_like(p) for p in model.parameters()]
        group, functional = dist.group.WORLD.group_name, torch.ops._c10d_functional

        @torch.compile(fullgraph=True)
        def update(gradients: list[Tensor]) -> None:
            means = [functional.all_reduce(gradient, "avg", group) for gradient in gradients]
            means = [functional.wait_tensor(mean) for mean in means]
            torch._foreach_mul_(momenta, 0.9)
            torch._foreach_add_(momenta, means)
            torch._foreach_add_(parameters, momenta, alpha=-0.1)

        for _ in range(2):
            train(model, model, 16)
            with torch.no_grad():
                update([p.grad for p in parameters])
        return [*(p.detach() for p in parameters), *momenta]

    assert_same(step)
    assert {kind for kind, _ in outcomes()} == {"inference"}
    assert all(report.report.schedule is not None for report in overlap_sched.reports())


@pytest.fixture
def deterministic() -> Iterator[None]:
    """torch's switch, which sets ``torch._inductor.config.deterministic`` too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_deterministic_mode_keeps_the_original_order_and_says_so() -> None:
    expected = alone(trained)
    with pytest.warns(OverlapSchedWarning) as warned:
        results = scheduled(trained)
    assert same(results, expected)
    messages = [str(w.message) for w in warned if issubclass(w.category, OverlapSchedWarning)]
    assert messages == [
        f"overlap_sched {what}: {NOT_RUN}"
        for what in (
            "cannot run",
            "leaves 'forward 0/0 of Plain' as it was",
            "leaves 'backward 0/0 of Plain' as it was",
        )
    ]
    assert outcomes() == [("forward", False), ("backward", False)]


def test_cpp_wrapper() -> None:
    with torch._inductor.config.patch(cpp_wrapper=True):
        try:
            expected = alone(trained)
        except torch._inductor.exc.InductorError as error:
            pytest.skip(f"torch {torch.__version__} itself cannot: {str(error).splitlines()[0]}")
        assert same(scheduled(trained), expected)
    assert outcomes() == [("forward", FORWARD_GAINS), ("backward", True)]
