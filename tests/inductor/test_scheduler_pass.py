"""What is reported is the order of the code, whoever reorders behind us; torch alone is never undone for nothing."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.scheduler import Scheduler
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import Digest
from overlap_sched.errors import OverlapSchedWarning, UnsupportedError
from overlap_sched.inductor import agree, kernel_graph, switch
from overlap_sched.inductor.decision import OrderDraft, decide
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import WatchPass
from tests.support.inductor.generated import Event, events, numbered, planned
from tests.support.inductor.models import RANKS, gathered

pytestmark = pytest.mark.usefixtures("clean")
ROOM = Options(headroom="1GiB", rewrites=())


def layers() -> list[Event]:
    """Compile and run three gathered layers: what the code does."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(64, 64 * RANKS)) for _ in range(6)]
    group = torch.distributed.group.WORLD.group_name

    def step(x: Tensor) -> Tensor:
        for weight in weights:
            x = torch.relu(x @ gathered(weight, group, RANKS))
        return x

    _, (code,) = run_and_get_code(torch.compile(step), torch.randn(16, 64 * RANKS))
    return numbered(events(code))


@pytest.fixture(scope="module")
def alone(ranks: None) -> list[Event]:
    with config.patch(fx_graph_cache=False):
        return layers()


def reported() -> overlap_sched.inductor.GraphReport:
    (found,) = overlap_sched.reports()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"triton.cudagraphs": True}], ids=["default", "reduce-overhead"])
def test_our_order_is_the_one_that_runs(settings: dict[str, Any], alone: list[Event]) -> None:
    overlap_sched.enable(ROOM)
    with config.patch(settings):
        ran = layers()
    plan = reported().report.schedule
    assert plan is not None
    assert reported().report.changed
    assert ran == numbered(planned(plan.problem, plan.order)) != alone


@pytest.mark.slow
def test_an_order_that_other_code_undoes_is_reported_as_undone(
    alone: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Scheduler.codegen

    def write_in_their_order(scheduler: Scheduler) -> None:
        scheduler.nodes = before
        write(scheduler)

    order, before = kernel_graph.order_kernels, []

    def ordered(settings: Settings, last: bool, snodes: list[Any]) -> list[Any]:
        before[:] = snodes
        return order(settings, last, snodes)

    monkeypatch.setattr(kernel_graph, "order_kernels", ordered)
    monkeypatch.setattr(Scheduler, "codegen", write_in_their_order)
    overlap_sched.enable(ROOM)
    with pytest.warns(OverlapSchedWarning) as warned:
        layers()
    report = reported().report
    assert not report.changed
    assert report.schedule is not None
    assert report.reason == "its new order was undone by other code, behind torch's passes"
    assert [str(w.message) for w in warned if issubclass(w.category, OverlapSchedWarning)] == [
        f"overlap_sched: {report.name!r} does not run in its new order: {report.reason}"
    ]


def off() -> None:
    setattr(config, switch.PASSES_ON, False)


def deterministic() -> None:
    torch.use_deterministic_algorithms(True)


@pytest.fixture
def not_deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.usefixtures("not_deterministic")
@pytest.mark.parametrize("later", [off, deterministic])
def test_who_switches_us_off_later_has_the_order_of_torch_alone(later: Any, alone: list[Event]) -> None:
    overlap_sched.enable(ROOM)
    later()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapSchedWarning)
        assert layers() == alone
    assert not any(report.report.changed for report in overlap_sched.reports())


@pytest.mark.slow
@pytest.mark.parametrize("last", [True, False])
def test_waits_are_known_only_where_our_order_comes_last(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """By them ranks reorder that launch differently: what torch still moves is not what it alone would run."""
    made: list[OrderDraft] = []

    def noted(graph: Any, settings: Settings) -> OrderDraft:
        made.append(decide(graph, settings))
        return made[-1]

    monkeypatch.setattr(kernel_graph, "asks", lambda settings: True)
    monkeypatch.setattr(kernel_graph, "decide", noted)
    if not last:
        monkeypatch.setattr(kernel_graph, "at_the_end", lambda *_: False)
    overlap_sched.enable(ROOM)
    layers()
    assert (made[0].facts.original is not None) is last


@pytest.mark.slow
def test_a_rank_whose_effects_cannot_be_put_in_order_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for it, and where they have agreed before it would launch beside them as it likes."""
    shown: list[Digest] = []

    def ask(mine: Digest, settings: Settings) -> None:
        shown.append(mine)

    def fails(snodes: Any) -> Any:
        raise UnsupportedError("other kernels in between keep them so")

    monkeypatch.setattr(kernel_graph, "asks", lambda settings: True)
    monkeypatch.setattr("overlap_sched.inductor.kernel_graph.in_order_of_effects", fails)
    monkeypatch.setattr(agree, "ask", ask)
    overlap_sched.enable(ROOM)
    with pytest.warns(OverlapSchedWarning, match="keep them so"):
        layers()
    assert shown
    assert all("keep them so" in one.failure and one.launches for one in shown)


@pytest.mark.usefixtures("not_deterministic")
def test_torchs_earlier_reorderer_runs_where_we_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "warn_of_obstacle", lambda found: None)
    graph = fx.Graph()
    graph.output(())

    def competing() -> bool:
        return bool(config.aten_distributed_optimizations.enable_overlap_scheduling)

    with config.patch({switch.COMPETING: True}):
        overlap_sched.enable(Options(rewrites=()))
        overlap_sched.enable(Options(rewrites=()))
        with overlap_sched.enabled(Options(rewrites=())):
            looks = getattr(config, switch.POST_GRAD)
            assert isinstance(looks, WatchPass)
            seen = [competing()]
            for step in (lambda: None, off, lambda: setattr(config, switch.PASSES_ON, True), deterministic):
                step()
                looks(graph)
                seen.append(competing())
        assert seen == [False, False, True, False, True]
        overlap_sched.disable()
        assert competing()


def test_an_order_that_takes_more_cuda_graphs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch replays them one by one, which a prediction does not know."""
    scheduler = object.__new__(Scheduler)
    monkeypatch.setattr(Scheduler, "should_partition", lambda self, snode, *more: "cpu ops" if snode.cpu else None)

    class Snode:
        def __init__(self, cpu: bool) -> None:
            self.scheduler, self.cpu = scheduler, cpu

    gpu, cpu, more = Snode(False), Snode(True), Snode(False)
    assert kernel_graph.cuda_graphs([gpu, cpu, more]) == 1  # without CUDA graphs
    with config.patch({"triton.cudagraphs": True, "graph_partition": True}):
        assert kernel_graph.cuda_graphs([gpu, cpu, more]) == 3
        assert kernel_graph.cuda_graphs([gpu, more, cpu]) == 2
