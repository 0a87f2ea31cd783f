"""The backend that does not lower, and the pass before lowering."""

import configparser
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx
from torch.profiler import ProfilerActivity, profile

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OptionsError
from overlap_sched.fx.lifting import STAYS
from overlap_sched.inductor import agree, eager
from overlap_sched.inductor.settings import Settings
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Kind
from overlap_sched.scheduler.driver import Schedule
from tests.support.inductor.models import Net, step

pytestmark = pytest.mark.usefixtures("clean")


def executed(run: Callable[[], Any]) -> list[str]:
    """What runs, in order, as the profiler sees it: launches, waits, matmuls."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        run()
    names = [event.name for event in sorted(profiled.events(), key=lambda event: event.time_range.start)]
    return [
        "matmul" if name in ("aten::mm", "aten::addmm") else name.removeprefix("_c10d_functional::")
        for name in names
        if name.startswith("_c10d_functional::") or name in ("aten::mm", "aten::addmm")
    ]


def planned(plan: Schedule) -> list[str]:
    nodes = [plan.problem.nodes[v] for v in plan.order]
    kinds = (Kind.COLLECTIVE, Kind.WAIT)
    return [
        "matmul" if "mm.default" in node.op else node.op.removeprefix("_c10d_functional.").split(".")[0]
        for node in nodes
        if node.kind in kinds or "mm.default" in node.op
    ]


def plans() -> list[Schedule]:
    return [report.report.schedule for report in overlap_sched.reports() if report.report.schedule is not None]


@pytest.mark.private
def test_what_runs_is_what_was_planned() -> None:
    model = Net()
    compiled = torch.compile(model, backend=overlap_sched.backend, fullgraph=True)
    step(model, compiled)
    ran = executed(lambda: step(model, compiled))
    forward, backward = plans()
    assert ran == planned(forward) + planned(backward)
    assert all(report.report.changed and report.stage == "backend" for report in overlap_sched.reports())


@pytest.mark.private
def test_results_are_those_of_eager_execution() -> None:
    model = Net()
    expected = step(model, torch.compile(model, backend="aot_eager"))
    torch._dynamo.reset()
    options = {"headroom": "1GiB", "strict": True}
    results = step(model, torch.compile(model, backend=overlap_sched.backend, options=options))
    assert all(map(torch.equal, expected, results))
    assert [plan.options for plan in plans()] == [
        Options(headroom="1GiB", strict=True, allocator="none", rewrites=())
    ] * 2


def test_torch_finds_it_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.backends import registry

    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[2] / "setup.cfg")
    name, _, where = setup["options.entry_points"]["torch_dynamo_backends"].strip().partition(" = ")
    monkeypatch.setitem(registry._BACKENDS, name, EntryPoint(name, where, "torch_dynamo_backends"))
    assert name == "overlap_sched"
    overlap_sched.enable(Options(headroom="7MiB"))  # which is taken where no options are given
    with torch.no_grad():
        torch.compile(Net(blocks=1), backend="overlap_sched")(torch.ones(16, 32))
    assert [plan.options.headroom for plan in plans()] == ["7MiB"]
    registry._COMPILER_FNS.pop(name)


def test_what_is_given_is_checked() -> None:
    empty = torch.fx.GraphModule({}, torch.fx.Graph())
    with pytest.raises(OptionsError, match=r"headrom'?\. Did you mean headroom"):
        overlap_sched.backend(empty, [], options={"headrom": 1})
    with pytest.raises(OptionsError, match="mode is 'max-autotune', which is for Inductor"):
        overlap_sched.backend(empty, [], mode="max-autotune")


def test_backward_is_told_which_inputs_its_caller_holds() -> None:
    """Weights, under whatever name they are saved; not what forward has computed."""
    graphs: dict[str, fx.GraphModule] = {}

    def keep(gm: fx.GraphModule, settings: Settings, kind: str) -> None:
        graphs[kind] = gm

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(x @ weight.view(8, 8)) @ weight.view(8, 8))

    weight = torch.randn(64, requires_grad=True)
    with mock.patch.object(eager, "rewrite_and_schedule", keep):
        torch.compile(program, backend=overlap_sched.backend)(torch.randn(4, 8), weight).sum().backward()
    inputs = graphs["backward"].graph.find_nodes(op="placeholder")
    stay = {node.name for node in inputs if STAYS in node.meta}
    assert any(not name.startswith("primals") for name in stay)  # saved as a view
    others = {node.name for node in inputs} - stay
    assert not any(name.startswith(("tanh", "tangents")) for name in stay)
    assert not any(name.startswith(("permute", "primals", "view", "t_")) for name in others), (stay, others)


def large_then_small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No collectives; as written what ``large`` holds is there while what ``small`` is made of is, too."""
    large = x @ y
    small = (x @ y[:, :128]) @ y[:128, :8]
    return large.t() @ small


@pytest.mark.private
@pytest.mark.parametrize("stage", ["inductor", "post_grad", "backend"])
def test_a_graph_without_collectives_is_ordered_for_its_peak_alone(stage: str) -> None:
    """Without asking other ranks, which may have no such graph."""
    x, y = torch.linspace(-1, 1, 64 * 256).reshape(64, 256), torch.linspace(-1, 1, 256 * 512).reshape(256, 512)
    options = Options(base="memory", strict=True)
    ways: dict[str, Any] = {"backend": overlap_sched.backend, "options": {"base": "memory", "strict": True}}
    if stage != "backend":
        ways = {"options": overlap_sched.inductor_options(options, stage=stage)}  # type: ignore[arg-type]
    torch._dynamo.reset()
    torchs_own = torch._inductor.config.patch(reorder_for_peak_memory=False)  # it finds as good an order here
    with torch.no_grad(), torchs_own, mock.patch.object(agree, "ask", side_effect=AssertionError("asked")):
        result = torch.compile(large_then_small, fullgraph=True, **ways)(x, y)
    (graph,) = overlap_sched.reports()
    plan = graph.report.schedule
    assert (graph.report.changed, graph.report.reason) == (True, None)
    assert plan is not None
    assert violation(plan.problem, plan.order) is None
    assert plan.scheduled.peak_bytes < plan.original.peak_bytes
    assert plan.scheduled.step_us <= plan.original.step_us
    assert torch.equal(result, large_then_small(x, y))
