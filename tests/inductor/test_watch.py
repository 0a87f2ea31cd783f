"""Who keeps Inductor from calling us: said once, with the names of those in the way and how to mend it."""

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config

import overlap_sched
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor import post_grad, sessions, torch_caches
from overlap_sched.inductor.reporting import tally
from tests.support.inductor.models import Net, step

pytestmark = [pytest.mark.slow, pytest.mark.private, pytest.mark.usefixtures("clean", "nothing_said")]

MEND = (
    ". Graphs are in the order that torch alone gives them. Other code has set that since, or torch.compile's own "
    "options do. Call overlap_sched.enable() after that code, or give the settings to torch.compile: "
    "options=overlap_sched.inductor_options()."
)
PASSED_BY = "overlap_sched: no graph reached it; {} compiled without it, as {}"
SWITCHED_OFF = "other code has switched it off"
BACKEND = (
    "backend {!r} never calls it: use torch.compile's default backend, or backend='overlap_sched', which runs graphs "
    "without lowering them"
)


@pytest.fixture
def nothing_said(clean: None) -> Iterator[None]:
    """As if no other test had compiled anything."""
    tally.forget()
    yield
    tally.forget()


def their_pass(graph: Any) -> None:
    """Somebody's."""


def their_backend(gm: Any, inputs: Any) -> Any:
    return gm


class Said:
    """Warnings and lines of the log, while a model is compiled with a plug-in on."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **compile_arguments: Any) -> None:
        model = Net()
        with (
            warnings.catch_warnings(record=True) as caught,
            caplog.at_level(logging.INFO, logger="overlap_sched"),
        ):
            warnings.simplefilter("always")
            step(model, torch.compile(model, **compile_arguments))
            overlap_sched.disable()
        ours = [w for w in caught if issubclass(w.category, OverlapSchedWarning)]
        self.warnings = [str(w.message).removeprefix(PREFIX).removesuffix(MEND) for w in ours]
        ours_too = [r.getMessage() for r in caplog.records if r.name == "overlap_sched"]  # not torch's own trace
        self.lines = [line for line in ours_too if "collectives, exposed" not in line]


PREFIX = "overlap_sched is switched on, but Inductor does not call it: "


def test_nobody(caplog: pytest.LogCaptureFixture) -> None:
    overlap_sched.enable()
    said = Said(caplog)
    assert said.warnings == []
    assert [line.split(",")[0] for line in said.lines if line.startswith("overlap_sched")] == [
        "overlap_sched: 2 graphs"
    ]


@pytest.mark.parametrize(
    ("stage", "changed", "message"),
    [
        (
            "inductor",
            {post_grad.PASSES_ON: False},
            "torch._inductor.config.reorder_for_compute_comm_overlap is False",
        ),
        (
            "inductor",
            {post_grad.PASSES_ON: False, post_grad.POST_GRAD: their_pass},
            "torch._inductor.config.reorder_for_compute_comm_overlap is False, and post_grad_custom_post_pass is "
            "their_pass of tests.inductor.test_watch",
        ),
        (
            "inductor",
            {post_grad.PASSES: ["sink_waits"]},
            "torch._inductor.config.reorder_for_compute_comm_overlap_passes is ['sink_waits']",
        ),
        ("post_grad", {post_grad.POST_GRAD: None}, "torch._inductor.config.post_grad_custom_post_pass is None"),
    ],
)
def test_settings_that_others_have_set(
    stage: Any, changed: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    overlap_sched.enable(stage=stage)
    for name, value in changed.items():
        setattr(config, name, value)
    said = Said(caplog)
    assert said.warnings == [message]
    graphs = "1 graph" if post_grad.POST_GRAD in changed else "2 graphs"  # as Dynamo counts where our pass is gone
    assert said.lines == [PASSED_BY.format(graphs, SWITCHED_OFF)]


def test_options_of_torch_compile(caplog: pytest.LogCaptureFixture) -> None:
    """They hold only while it compiles."""
    overlap_sched.enable()
    said = Said(caplog, options={post_grad.PASSES_ON: False})
    assert said.warnings == ["torch._inductor.config.reorder_for_compute_comm_overlap is False"]
    assert said.lines == [PASSED_BY.format("2 graphs", SWITCHED_OFF)]


@pytest.mark.parametrize(
    ("backend", "name"),
    [("aot_eager", "aot_eager"), ("eager", "eager"), (their_backend, "their_backend of tests.inductor.test_watch")],
)
def test_backends_that_do_not_lower(backend: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    overlap_sched.enable()
    said = Said(caplog, backend=backend)
    assert said.warnings == []
    assert said.lines == [PASSED_BY.format("1 graph", BACKEND.format(name))]


def test_our_own_backend_is_no_stranger(caplog: pytest.LogCaptureFixture) -> None:
    overlap_sched.enable()
    said = Said(caplog, backend=overlap_sched.backend)
    assert said.warnings == []
    assert said.lines[-1].startswith("overlap_sched: 2 graphs, 2 with collectives, 2 reordered (exposed ")


def test_graphs_out_of_a_cache_are_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    """torch then calls no pass, and need not."""
    new = overlap_sched.Options(agreement="none", headroom=time.time_ns() % 10**9)  # never cached before
    lines = []
    with config.patch(fx_graph_cache=True):
        for _ in range(2):
            torch._dynamo.reset()
            overlap_sched.enable(new)
            said = Said(caplog)
            caplog.clear()
            assert said.warnings == []
            lines.append([line for line in said.lines if line.startswith("overlap_sched: ")])
    (first,), second = lines
    assert first.startswith("overlap_sched: 2 graphs, 2 with collectives, ")
    graphs = "2 graphs" if torch_caches._watching else "1 graph"  # once watched, forward and backward are counted each
    found = "out of torch's caches, in the order that was cached"
    assert second == [f"overlap_sched: {graphs} {found}"]
    lines = [f"{name} 0/0 of Net (inductor): {found}" for name in ("graph", "backward")]
    assert [one.line for one in overlap_sched.reports()[2:]] == lines


def test_after_reset_the_next_graph_brings_the_callbacks_back(caplog: pytest.LogCaptureFixture) -> None:
    overlap_sched.enable()
    torch._dynamo.reset()
    assert not sessions.listening()
    Said(caplog)
    assert sessions.listening()


def test_nothing_compiled_in_a_block(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="overlap_sched"), overlap_sched.enabled():
        compiled = torch.compile(Net())
    assert [r.getMessage() for r in caplog.records] == [
        "overlap_sched: nothing was compiled inside of enabled(). torch compiles when a function is called first, and "
        "its backward when that is: both belong into the block. Or call overlap_sched.enable() once, before the first "
        "step."
    ]
    compiled(torch.ones(16, 32))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="overlap_sched"), overlap_sched.enabled():
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        overlap_sched.disable()
    assert not any("nothing was compiled" in r.getMessage() for r in caplog.records)


def test_what_fails_while_it_watches_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    def half(x: Tensor) -> Tensor:
        return x / 2

    overlap_sched.enable()
    monkeypatch.setattr(sessions, "dynamo_frame", fails)
    with pytest.warns(OverlapSchedWarning, match="could not watch a compilation: ZeroDivisionError: by zero"):
        assert torch.compile(half)(torch.ones(2)).tolist() == [0.5, 0.5]
