"""From the order with the lowest peak: each front end schedules, verifies, and results stay bitwise the same."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

import overlap_sched
from overlap_sched import Options
from overlap_sched.inductor import attempt
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler import runs
from overlap_sched.scheduler.driver import Schedule
from tests.support.inductor.models import RANKS, gathered

pytestmark = pytest.mark.usefixtures("clean")


def wide_then_narrow(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """As written four wide values live side by side; one after the other they need half of that.

    Matmuls alone: no kernel has to be compiled for them.
    """
    group = torch.distributed.group.WORLD.group_name
    wide = [left @ right.t() for left, right in ((x, y), (y, z), (z, x), (x, x))]
    a, b, c, d = (each @ x for each in wide)
    first = gathered(d.t() @ d, group, RANKS)
    second = gathered(first.t() @ first, group, RANKS)  # two gathers in a row, and `a` to `c` to hide them
    late = a @ (b.t() @ c) @ second.t()
    outer = late @ late.t()
    return outer @ outer


def run(**compile_arguments: Any) -> torch.Tensor:
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 64 * 8).reshape(64, 8)
    compiled = torch.compile(wide_then_narrow, fullgraph=True, **compile_arguments)
    with torch.no_grad():
        result: torch.Tensor = compiled(x, x.cos(), x.sin())
    return result


def plan_of(stage: str, options: Options) -> Schedule:
    """The only graph's, which was scheduled, kept its promises and is in the new order."""
    (graph,) = overlap_sched.reports()
    plan = graph.report.schedule
    assert (graph.stage, graph.report.changed, graph.report.reason) == (stage, True, None)
    assert plan is not None
    assert replace(plan.options, rewrites=()) == replace(options, allocator="none", rewrites=())  # on a CPU
    assert plan.fell_back is None
    assert violation(plan.problem, plan.order) is None
    assert plan.order != plan.problem.original_order
    assert plan.scheduled.step_us < plan.original.step_us
    return plan


def large_then_small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No collectives; as written what ``large`` holds is there while what ``small`` is made of is, too."""
    large = x @ y
    small = (x @ y[:, :128]) @ y[:128, :8]
    return large.t() @ small


@pytest.mark.slow
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
    with torch.no_grad(), torchs_own, mock.patch.object(attempt, "decided", side_effect=AssertionError("asked")):
        result = torch.compile(large_then_small, fullgraph=True, **ways)(x, y)
    (graph,) = overlap_sched.reports()
    plan = graph.report.schedule
    assert (graph.report.changed, graph.report.reason) == (True, None)
    assert plan is not None
    assert violation(plan.problem, plan.order) is None
    assert plan.scheduled.peak_bytes < plan.original.peak_bytes
    assert plan.scheduled.step_us <= plan.original.step_us
    assert torch.equal(result, large_then_small(x, y))


@pytest.mark.slow
@pytest.mark.private
def test_the_backend() -> None:
    expected = run(backend="aot_eager")
    result = run(backend=overlap_sched.backend, options={"base": "memory-peak", "strict": True})
    plan = plan_of("backend", Options(base="memory-peak", strict=True))
    assert plan.base_bytes is not None
    assert plan.scheduled.peak_bytes <= plan.base_bytes < 0.7 * plan.original.peak_bytes
    assert torch.equal(result, expected)


@pytest.mark.slow
@pytest.mark.private
def test_inductor() -> None:
    """Here torch has brought the peak down before us, by locality or by its own pass."""
    expected = run()
    options = Options(base="memory", strict=True)
    for stage in ("inductor", "post_grad"):
        overlap_sched.clear_reports()
        with mock.patch.object(runs, "best_order", wraps=runs.best_order) as asked:
            result = run(options=overlap_sched.inductor_options(options, stage=stage))  # type: ignore[arg-type]
        assert asked.call_count == 1
        plan = plan_of(stage, options)
        assert plan.scheduled.peak_bytes <= plan.original.peak_bytes
        assert torch.equal(result, expected)
