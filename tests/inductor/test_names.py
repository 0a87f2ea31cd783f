"""Names of graphs: what a person would call them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import overlap_sched
from overlap_sched.inductor.reporting import dynamo_frame, graph_name
from tests.support.inductor.models import Net, step

pytestmark = pytest.mark.usefixtures("clean")


class Plain(nn.Module):
    """One matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sum()

    def other(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()


class Broken(Plain):
    """Compiled in two parts."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return self.linear(x).sum()


def halved(x: Tensor) -> Tensor:
    return x / 2


def names(call: Any) -> list[str]:
    """Of the graphs that were compiled in a call."""
    with overlap_sched.enabled():
        call()
    return [report.name for report in overlap_sched.reports()]


@pytest.mark.slow
@pytest.mark.private
def test_a_module_by_its_class() -> None:
    model = Plain()
    assert names(lambda: step(model, torch.compile(model))) == ["forward 0/0 of Plain", "backward 0/0 of Plain"]


@pytest.mark.slow
@pytest.mark.private
def test_the_module_that_is_compiled_in_place() -> None:
    model = Plain()
    model.compile()
    assert names(lambda: step(model, model)) == ["forward 0/0 of Plain", "backward 0/0 of Plain"]


@pytest.mark.slow
@pytest.mark.private
def test_a_method_and_a_function() -> None:
    model, x = Plain(), torch.ones(4, 32)

    def calls() -> None:
        with torch.no_grad():
            torch.compile(model.other)(x)
            torch.compile(halved)(x)
            torch.compile(lambda x: x + 1)(x)

    assert names(calls) == ["inference 0/0 of Plain.other", "inference 1/0 of halved", "inference 2/0 of <lambda>"]


@pytest.mark.slow
@pytest.mark.private
def test_where_it_goes_on_after_a_graph_break() -> None:
    def call() -> None:
        with torch.no_grad():
            torch.compile(Broken())(torch.ones(4, 32))

    line = Broken.forward.__code__.co_firstlineno + 2
    first, second = names(call)
    assert first == "inference 0/0 of Broken"
    assert second in [f"inference {number}/0 of Broken (from line {line})" for number in (1, 2)]


@pytest.mark.slow
def test_compiled_autograd() -> None:
    model = Net()

    def train(x: Tensor) -> None:
        model(x).backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        first, *_, last = names(lambda: torch.compile(train)(torch.ones(16, 32)))
    assert first == "forward 0/0 of train"
    assert last.startswith("backward !0/")
    assert last.endswith(" of compiled autograd")


def test_nothing_is_compiled() -> None:
    assert dynamo_frame() is None
    assert graph_name("forward") == "forward"
    assert graph_name("forward", "inner", 3) == "forward 3 inner"


@pytest.mark.slow
@pytest.mark.private
def test_a_torch_that_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then less is said."""

    def fails() -> None:
        raise KeyError

    monkeypatch.setattr("overlap_sched.inductor.reporting.dynamo_frame", fails)
    model = Plain()
    assert names(lambda: step(model, torch.compile(model))) == ["forward 0/0", "backward 0/0"]
