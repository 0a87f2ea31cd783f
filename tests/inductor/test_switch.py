"""On, off, nested, with other passes around: every setting comes back."""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch.optim import optimizer

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OptionsError, OverlapSchedWarning, UnsupportedError
from overlap_sched.inductor import switch
from overlap_sched.inductor.reporting import Tally, tally
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import UNKNOWN_TORCH, PostGradPass, SchedulerPass, current_settings, knows_torch
from tests.inductor.conftest import no_caches
from tests.support.inductor.models import RANKS, Net, Pair, routed, step, unroute

PASSES = "reorder_for_compute_comm_overlap_passes"
OVERLAP = "aten_distributed_optimizations.enable_overlap_scheduling"

pytestmark = pytest.mark.usefixtures("clean")


def all_settings() -> dict[str, Any]:
    return dict(config.get_config_copy())


def their_pass(nodes: list[Any]) -> list[Any]:
    return nodes


def test_off_again_restores_every_setting() -> None:
    with config.patch({PASSES: ["sink_waits"], "reorder_for_compute_comm_overlap": True, OVERLAP: True}):
        before = all_settings()
        with overlap_sched.enabled():
            assert all_settings() != before
        assert all_settings() == before
        overlap_sched.enable()
        overlap_sched.enable(Options(headroom="1GiB"), stage="post_grad")
        overlap_sched.disable()
        assert all_settings() == before
        overlap_sched.disable()
        assert all_settings() == before


@pytest.fixture
def not_routed() -> Iterator[None]:
    """Off at first."""
    unroute()
    yield
    assert not routed()


@pytest.mark.usefixtures("not_routed")
def test_gathers_over_gloo_are_safe_while_it_is_on() -> None:
    with overlap_sched.enabled():
        assert routed()
    overlap_sched.enable()
    assert routed()
    overlap_sched.disable()
    assert not routed()


@pytest.mark.private
@pytest.mark.usefixtures("not_routed")
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_and_for_as_long_as_somebody_holds_our_options(stage: Any) -> None:
    """As a compiled function does: torch may find its graph in a cache, where no pass is called."""
    options = overlap_sched.inductor_options(stage=stage)
    with overlap_sched.enabled():
        pass
    gc.collect()
    assert routed()
    del options
    gc.collect()


def test_blocks_nest_and_the_inner_one_counts() -> None:
    with overlap_sched.enabled(Options(headroom=1)):
        with overlap_sched.enabled(Options(headroom=2)):
            assert [one.settings.options.headroom for one in getattr(config, PASSES)] == [2]
        assert [one.settings.options.headroom for one in getattr(config, PASSES)] == [1]


def in_cache_keys() -> tuple[bytes, dict[str, Any]]:
    """What torch remembers of its settings, per context."""
    return config.get_hash(), config.save_config_portable(ignore_private_configs=False, readonly_values=True)


@pytest.mark.parametrize("how", [{}, {"stage": "post_grad"}, {"max_slowdown": 0.05}], ids=str)
def test_every_thread_and_copied_context_has_the_settings_and_loses_them_again(how: dict[str, Any]) -> None:
    copied = copy_context()
    with ThreadPoolExecutor(1) as thread:

        def everywhere(call: Callable[[], Any]) -> list[Any]:
            return [call(), copied.run(call), thread.submit(call).result()]

        before = everywhere(in_cache_keys)
        overlap_sched.enable(**how)
        passes = everywhere(lambda: (config.reorder_for_compute_comm_overlap_passes, config.post_grad_custom_post_pass))
        assert passes[0] == passes[1] == passes[2]
        assert passes[0] != ([], None)
        for (one, settings), (other, earlier) in zip(everywhere(in_cache_keys), before, strict=True):
            assert one != other
            assert (settings == earlier) == ("stage" in how)  # torch asks post-grad passes for their uuid()
        overlap_sched.disable()
        assert everywhere(in_cache_keys) == before


def in_a_new_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


@pytest.mark.parametrize(
    ("elsewhere", "whole", "stage"),
    [
        (in_a_new_thread, True, "inductor"),
        (in_a_new_thread, False, "post_grad"),
        (copy_context().run, False, "inductor"),
    ],
)
def test_what_is_compiled_in_another_thread_is_scheduled(
    elsewhere: Callable[[Callable[[], Any]], Any], whole: bool, stage: Any
) -> None:
    def forward() -> Any:
        with no_caches():
            return torch.compile(Pair(32, RANKS), fullgraph=True)(torch.randn(16, 32))

    def backward(loss: torch.Tensor) -> None:
        with no_caches():
            loss.backward()

    with overlap_sched.enabled(Options(strict=True), stage=stage):
        loss = elsewhere(forward) if whole else forward()
        elsewhere(lambda: backward(loss))
    graphs = [(one.name.split()[0], one.stage, one.report.schedule is None) for one in overlap_sched.reports()]
    assert graphs == [("forward", stage, False), ("backward", stage, False)]


def test_torchs_reorderers_are_off_and_the_report_says_so() -> None:
    settings = {PASSES: ["sink_waits", their_pass], "reorder_for_compute_comm_overlap": True, OVERLAP: True}
    with config.patch(settings), overlap_sched.enabled():
        assert getattr(config, PASSES)[0] is their_pass  # a user's own runs before ours
        assert isinstance(getattr(config, PASSES)[1], SchedulerPass)
        assert config.aten_distributed_optimizations.enable_overlap_scheduling is False
        notes = current_settings()
    assert notes is not None
    assert notes.notes == (
        "torch's aten_distributed_optimizations.enable_overlap_scheduling is turned off",
        "torch's pass 'sink_waits' is turned off",
        "their_pass runs before this pass",
    )


def test_a_version_that_is_not_known_leaves_torch_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.inductor.switch.knows_torch", lambda: False)
    before = all_settings()
    with pytest.warns(OverlapSchedWarning) as warned:
        assert overlap_sched.inductor_options() == {}
    with overlap_sched.enabled():  # the same is not said again
        assert all_settings() == before
    assert [str(w.message) for w in warned] == [f"overlap_sched leaves torch as it is: {UNKNOWN_TORCH}"]
    with pytest.raises(UnsupportedError, match=r"supports the Inductor scheduler of torch 2\.11 to"):
        overlap_sched.enable(Options(strict=True))
    assert all_settings() == before
    with overlap_sched.enabled(stage="post_grad"):  # uses public names only
        assert all_settings() != before


def test_versions() -> None:
    assert [knows_torch(version) for version in ("2.10.9", "2.11.0", "2.15.1+cu130", "2.16.0a0")] == [0, 1, 1, 0]


def test_options_of_ours_are_none_of_inductor() -> None:
    said = r"Write torch\.compile\(model, options=inductor_options\(Options\(\.\.\.\)\)\)"
    with pytest.raises(OptionsError, match=said):
        torch.compile(torch.sin, options=Options())


def test_a_post_grad_pass_that_was_there_runs_first() -> None:
    class Theirs(torch._inductor.custom_graph_pass.CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.append("theirs")

        def uuid(self) -> str:
            return "theirs"

    seen, graph = list[str](), torch.fx.Graph()
    graph.output(())
    with config.patch({"post_grad_custom_post_pass": Theirs()}):
        ours = overlap_sched.inductor_options(stage="post_grad")["post_grad_custom_post_pass"]
    assert isinstance(ours, PostGradPass)
    ours(graph)
    assert seen == ["theirs"]
    assert str(ours.uuid()).startswith("theirs ")


def test_groups_that_share_ranks_stay_apart_over_rccl(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().options.concurrent_groups == "any"
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert Settings().options == Options(concurrent_groups="disjoint")
    assert Settings(Options(concurrent_groups="one")).options.concurrent_groups == "one"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"memory_limits": "40GiB"}, "takes no memory_limits. Did you mean memory_limit?"),
        ({"model": "A100"}, r"model is 'A100'; .*Roofline\(device_named\('A100'\)\)"),
        ({"cost": 5}, "cost is 5"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"options": Options(memory_model="tracker")}, "memory_model is 'tracker', .*stage='post_grad'"),
        ({"stage": "fx"}, "stage is 'fx'. It must be 'inductor' or 'post_grad'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_given(given: dict[str, Any], named: str) -> None:
    def enabled(**given: Any) -> None:
        with overlap_sched.enabled(**given):
            pass

    for call in (overlap_sched.enable, enabled, overlap_sched.inductor_options):
        with pytest.raises(OptionsError, match=named):
            call(**given)
        assert current_settings() is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_warning_where_it_is_switched_on_late(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switch, "rank", lambda: rank)

    def warned(*given: Any) -> bool:
        caplog.clear()
        overlap_sched.enable(*given)
        return any("They keep their order" in r.getMessage() for r in caplog.records)

    assert not warned()
    assert not warned(Options(headroom="1GiB"))  # nothing is compiled by then
    overlap_sched.disable()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    late = rank == 0
    assert [warned(), warned(), warned(Options(headroom="1GiB"))] == [late, False, late]


@pytest.fixture
def nothing_said(clean: None) -> Iterator[None]:
    """As if no other test had compiled anything."""
    vars(tally).update(vars(Tally()))
    yield
    vars(tally).update(vars(Tally()))


def graph_pass(graph: Any) -> None:
    """Somebody's."""


def warned_and_logged(caplog: pytest.LogCaptureFixture, **compile_arguments: Any) -> tuple[list[str], list[str]]:
    """Warnings of ours, and the lines on all graphs, while a model is compiled with a plug-in on."""
    model = Net()
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO, logger="overlap_sched"):
        warnings.simplefilter("always")
        step(model, torch.compile(model, **compile_arguments))
        overlap_sched.disable()
    ours = [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]
    return ours, [r.getMessage() for r in caplog.records if r.getMessage().startswith("overlap_sched:")]


@pytest.mark.private
@pytest.mark.usefixtures("nothing_said")
class TestWhoKeepsInductorFromCallingUs:
    def test_nobody(self, caplog):
        overlap_sched.enable()
        warned, (line,) = warned_and_logged(caplog)
        assert warned == []
        assert line.startswith("overlap_sched: 2 graphs, 2 with collectives, ")

    @pytest.mark.parametrize(
        ("stage", "changed", "named"),
        [
            ("inductor", {switch.PASSES_ON: False}, f"{switch.PASSES_ON} is False"),
            ("inductor", {switch.PASSES_ON: False, switch.POST_GRAD: graph_pass}, f"{switch.PASSES_ON} is False"),
            ("inductor", {switch.PASSES: ["sink_waits"]}, f"{switch.PASSES} is ['sink_waits']"),
            ("post_grad", {switch.POST_GRAD: None}, f"{switch.POST_GRAD} is None"),
        ],
    )
    def test_settings_that_others_have_set(self, stage, changed, named, caplog):
        overlap_sched.enable(stage=stage)
        for name, value in changed.items():
            setattr(config, name, value)
        (warned,), (line,) = warned_and_logged(caplog)
        assert f"torch._inductor.config.{named}. " in warned
        assert "compiled, none reached it" in line

    @pytest.mark.parametrize("backend", ["aot_eager", lambda gm, inputs: gm])
    def test_backends_that_do_not_lower(self, backend, caplog):
        overlap_sched.enable()
        warned, (line,) = warned_and_logged(caplog, backend=backend)
        assert warned == []
        assert line.startswith("overlap_sched: 1 graph compiled, none reached it. Only Inductor")

    def test_graphs_out_of_a_cache_are_not_missed(self, caplog):
        """torch then calls no pass, and need not."""
        new = overlap_sched.Options(agreement="none", headroom=time.time_ns() % 10**9)  # never cached before
        lines = []
        with config.patch(fx_graph_cache=True):
            for _ in range(2):
                torch._dynamo.reset()
                overlap_sched.enable(new)
                warned, said = warned_and_logged(caplog)
                assert warned == []
                lines.append(said)
        (first,), second = lines
        assert first.startswith("overlap_sched: 2 graphs, 2 with collectives, ")
        assert second == ["overlap_sched: 2 graphs out of torch's caches"]
        names = [f"{name} 0/0 of Net (inductor): out of torch's caches" for name in ("graph", "backward")]
        assert [one.line.partition(",")[0] for one in overlap_sched.reports()[2:]] == names

    def test_nothing_compiled_in_a_block(self, caplog):
        for compiles in (False, True):
            caplog.clear()
            with caplog.at_level(logging.INFO, logger="overlap_sched"), overlap_sched.enabled():
                compiled = torch.compile(lambda x: x + 1, backend="eager")
                if compiles:
                    compiled(torch.ones(3))
            said = [r.getMessage() for r in caplog.records if r.name == "overlap_sched"]
            assert (said == [switch.NOTHING_COMPILED]) is not compiles

    def test_what_fails_while_it_watches_is_a_warning(self, monkeypatch):
        overlap_sched.enable()
        monkeypatch.setattr(switch, "find_obstacle", lambda settings: 1 / 0)
        with pytest.warns(OverlapSchedWarning, match="could not watch a compilation: ZeroDivisionError"):
            assert torch.compile(lambda x: x / 2, backend="eager")(torch.ones(2)).tolist() == [0.5, 0.5]


def train(steps: int) -> None:
    model = torch.nn.Linear(8, 8)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        sgd.step()


@pytest.mark.parametrize(
    ("steps", "compiled", "rank", "error", "said"),
    [(1, 0, 0, False, 1), (3, 0, 0, False, 1), (1, 0, 0, True, 0), (3, 1, 0, False, 0), (3, 0, 1, False, 0)],
)
def test_steps_without_anything_compiled_are_said_once(
    steps: int, compiled: int, rank: int, error: bool, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two of them, or where the process ends after less and by no error."""
    monkeypatch.setitem(switch.counters["stats"], "unique_graphs", compiled)
    monkeypatch.setattr(switch, "rank", lambda: rank)
    monkeypatch.setattr("sys.last_type", KeyError, raising=False)
    if not error:
        monkeypatch.delattr("sys.last_type")
    hooks = len(optimizer._global_optimizer_post_hooks)
    with warnings.catch_warnings(record=True) as caught, overlap_sched.enabled():
        warnings.simplefilter("always")
        train(steps)
        assert len(optimizer._global_optimizer_post_hooks) == hooks + (steps < switch.EAGER_STEPS)
        for _ in range(2):
            switch._end()
        switch._watch.start(None)  # torch finds no hook of ours when it compiles
        assert len(optimizer._global_optimizer_post_hooks) == hooks
    assert [str(one.message) for one in caught].count(switch.NOTHING_COMPILED) == said
