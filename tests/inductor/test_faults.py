"""A fault at any boundary: the job goes on with the results that it would have had, and one warning says why."""

import logging
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from tests.inductor.conftest import Compiled, compiled_step
from tests.support.inductor.models import Net, step


class InjectedError(Exception):
    """Thrown into the works."""


def fails(*_: Any, **__: Any) -> Any:
    raise InjectedError("injected")


def a_node_short(lifted: Any, order: Any) -> list[Any]:
    return [snode for snode in lifted.snodes if snode is not None][1:]


def twice_the_first(lifted: Any, order: Any) -> list[Any]:
    snodes = [snode for snode in lifted.snodes if snode is not None]
    return [snodes[0], *snodes[:-1]]


BEFORE: dict[str, tuple[str, Any]] = {
    "version": ("overlap_sched.inductor.scheduler_pass.check_torch", fails),
    "name": ("overlap_sched.inductor.private.graph_name", fails),
    "read_graph": ("overlap_sched.inductor.lifting.read_graph", fails),
    "buffers": ("overlap_sched.inductor.lifting.read_buffers", fails),
    "flow": ("overlap_sched.inductor.lifting.DataFlow", fails),
    "hazards": ("overlap_sched.inductor.lifting.dependencies", fails),
    "costs": ("overlap_sched.inductor.lifting.KernelCosts", fails),
    "problem": ("overlap_sched.inductor.lifting.Problem", fails),
    "schedule": ("overlap_sched.inductor.attempt.schedule", fails),
    "reordered": ("overlap_sched.inductor.lifting.LiftedKernels.reordered", fails),
    "missing node": ("overlap_sched.inductor.lifting.LiftedKernels.reordered", a_node_short),
    "node twice": ("overlap_sched.inductor.lifting.LiftedKernels.reordered", twice_the_first),
}
"""Before an order is settled: the graph stays as it was."""

AFTER: dict[str, tuple[str, Any]] = {
    "report": ("overlap_sched.inductor.reporting.GraphReport.to_json", fails),
    "line": ("overlap_sched.inductor.reporting.GraphReport.line", property(fails)),
    "log": ("overlap_sched.inductor.reporting.log.info", fails),
    "trace": ("overlap_sched.inductor.reporting.trace_structured", fails),
    "planner": ("overlap_sched.inductor.kernels.tell_sizes", fails),
}
"""When it is settled: nothing changes it any more."""


def fast(faults: Mapping[str, object], *names: str) -> list[Any]:
    """Each compiles a step: all but these are for the long run."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in faults]


@pytest.fixture(scope="module")
def plain(ranks: None) -> Compiled:
    return compiled_step(Net(blocks=1))


@pytest.fixture(scope="module")
def ours(ranks: None) -> Compiled:
    return compiled_step(Net(blocks=1), options=overlap_sched.inductor_options(Options(headroom="20%", strict=True)))


def run(options: Options, **arguments: Any) -> tuple[Compiled, list[str]]:
    """One step, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = compiled_step(Net(blocks=1), options=overlap_sched.inductor_options(options, **arguments))
    return compiled, [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("where", fast(BEFORE, "version", "name", "costs", "schedule", "missing node"))
def test_before_an_order_is_settled(where: str, plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = BEFORE[where]
    monkeypatch.setattr(target, fault)
    compiled, warned = run(Options(headroom="20%"))
    assert all(map(torch.equal, plain.results, compiled.results))
    assert [r.report.changed for r in compiled.reports] == [False, False]
    unnamed = where in ("version", "name")
    assert len(warned) == (1 if unnamed else 2)  # one for each graph, but the same sentence once
    assert all(message.startswith("overlap_sched leaves ") for message in warned)
    assert all(re.search("injected|the order has", str(r.report.reason)) for r in compiled.reports)


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("where", fast(AFTER, "report", "planner"))
def test_after_it_is_settled(where: str, ours: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = AFTER[where]
    monkeypatch.setattr(target, fault)
    logging.getLogger("overlap_sched").setLevel(logging.DEBUG)
    compiled, warned = run(Options(headroom="20%"))
    logging.getLogger("overlap_sched").setLevel(logging.NOTSET)
    assert all(map(torch.equal, ours.results, compiled.results))
    assert len(warned) == (1 if where == "planner" else 2)
    if where != "planner":  # whose sizes decide how memory is reused
        assert [code_of(code) for code in compiled.code] == [code_of(code) for code in ours.code]


def code_of(code: str) -> list[str]:
    from tests.support.inductor.generated import body

    return [line for line in body(code) if not line.startswith("#")]


@pytest.mark.slow
@pytest.mark.private
def test_what_was_warned(plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.inductor.lifting.read_buffers", fails)
    compiled, warned = run(Options())
    assert warned[0] == f"overlap_sched leaves {compiled.reports[0].name!r} as it was: InjectedError: injected"


@pytest.mark.slow
@pytest.mark.private
def test_a_bad_order_of_the_scheduler_is_found(plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The validator stands between: here a scheduler that runs everything backwards."""
    module = sys.modules["overlap_sched.scheduler.pipeline"]
    right = module.best_order

    def backwards(*arguments: Any) -> Any:
        best, base_bytes = right(*arguments)
        return replace(best, order=best.order[::-1]), base_bytes

    monkeypatch.setattr(module, "best_order", backwards)
    compiled, warned = run(Options(headroom="20%"))
    assert all(map(torch.equal, plain.results, compiled.results))
    assert [r.report.changed for r in compiled.reports] == [False, False]
    assert len(warned) == 2


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("where", ["buffers", "schedule", "node twice"])
def test_strict_raises(where: str, ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = BEFORE[where]
    monkeypatch.setattr(target, fault)
    with pytest.raises(Exception, match=r"VerificationError: scheduling 'forward .*' failed: "):
        run(Options(strict=True))


@pytest.mark.slow
@pytest.mark.private
def test_warnings_that_are_errors_do_not_stop_a_job(plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.inductor.lifting.read_buffers", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverlapSchedWarning)
        compiled = compiled_step(Net(blocks=1), options=overlap_sched.inductor_options())
    assert all(map(torch.equal, plain.results, compiled.results))


FX_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "lift": ("overlap_sched.fx.apply.lift", fails),
    "schedule": ("overlap_sched.inductor.attempt.schedule", fails),
    "reorder": ("overlap_sched.fx.apply.reorder", fails),
    "all": ("overlap_sched.inductor.fx_stage.schedule_graph", fails),
    "report": ("overlap_sched.inductor.reporting.trace_structured", fails),
}


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("where", fast(FX_FAULTS, "schedule", "all"))
def test_the_backend_goes_on_too(where: str, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(blocks=1)
    expected = step(model, torch.compile(model, backend="aot_eager"))
    monkeypatch.setattr(*FX_FAULTS[where])
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = step(model, torch.compile(model, backend=overlap_sched.backend))
    assert all(map(torch.equal, expected, results))
    ours = [w for w in caught if issubclass(w.category, OverlapSchedWarning)]
    assert len(ours) == 2
