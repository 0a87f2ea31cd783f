"""Steps that run without torch.compile: said once, on rank 0, and never where something is compiled."""

import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from overlap_sched.distributed import uncompiled
from overlap_sched.distributed.uncompiled import NOTHING_COMPILED, Uncompiled
from overlap_sched.errors import OverlapSchedWarning


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Uncompiled]:
    """A job in which nothing has been compiled or said."""
    fresh = Uncompiled()
    monkeypatch.setattr(uncompiled, "uncompiled", fresh)
    monkeypatch.setattr(uncompiled, "compiled", lambda: False)
    yield fresh
    uncompiled.stop_counting()


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]


def train(model: nn.Module, steps: int) -> None:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        sgd.step()


def test_steps_of_an_optimizer_are_counted_until_it_is_said(job: Uncompiled) -> None:
    hooks = len(optimizers._global_optimizer_post_hooks)
    uncompiled.watch_optimizers()
    assert len(optimizers._global_optimizer_post_hooks) == hooks + 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(nn.Linear(8, 8), 1)
        assert not said(caught)
        train(nn.Linear(8, 8), 3)
    assert said(caught) == [NOTHING_COMPILED]
    assert len(optimizers._global_optimizer_post_hooks) == hooks
    assert not job.counts


def test_nothing_is_said_where_something_is_compiled(job: Uncompiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncompiled, "compiled", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverlapSchedWarning)
        uncompiled.watch_optimizers()
        train(nn.Linear(8, 8), 3)
        assert not job.counts


def test_where_warnings_are_errors_the_job_goes_on(
    job: Uncompiled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, logger="overlap_sched"):
        warnings.simplefilter("error")
        job.tell()
        job.tell()
        assert [r.getMessage() for r in caplog.records] == [NOTHING_COMPILED]
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
        Uncompiled().tell()  # only rank 0 speaks
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_a_process_that_ends_after_less(job: Uncompiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plug-in is on, and no error has ended it."""
    import overlap_sched
    from overlap_sched.inductor import switch

    monkeypatch.setattr(switch, "uncompiled", job)
    monkeypatch.delattr("sys.last_type", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        switch._end()
        uncompiled.watch_optimizers()
        hooks = len(optimizers._global_optimizer_post_hooks)
        switch._watch.start(None)  # torch finds no hook of ours when it compiles
        assert len(optimizers._global_optimizer_post_hooks) == hooks - 1
        overlap_sched.enable()
        try:
            monkeypatch.setattr("sys.last_type", KeyError, raising=False)
            switch._end()
            assert not said(caught)
            monkeypatch.delattr("sys.last_type")
            switch._end()
        finally:
            overlap_sched.disable()
    assert said(caught) == [NOTHING_COMPILED]
