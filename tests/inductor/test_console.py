"""How lines reach people: shown where nobody has set up logging, and as logging says where somebody has."""

import io
import logging
import sys
import warnings
from collections.abc import Callable

import pytest
import torch.distributed as dist

from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor import console


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Ours, in a process in which nobody has set up logging."""
    manager = logging.Manager(logging.RootLogger(logging.WARNING))
    manager.loggerClass = type("Ours", (logging.Logger,), {"manager": manager, "root": manager.root})
    own = manager.getLogger("overlap_sched")
    monkeypatch.setattr(console, "log", own)
    return own


def basic_config(log: logging.Logger, level: int) -> None:
    """As ``logging.basicConfig(level=...)``."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    log.manager.root.addHandler(handler)
    log.manager.root.setLevel(level)


PLAIN, INFO, WARNING = "a line\n", "INFO:overlap_sched:a line\n", "WARNING:overlap_sched:a line\n"


@pytest.mark.parametrize(
    ("setup", "info", "warning"),
    [
        pytest.param(lambda log: None, PLAIN, PLAIN, id="none"),
        pytest.param(lambda log: basic_config(log, logging.INFO), INFO, WARNING, id="basicConfig(level=INFO)"),
        pytest.param(lambda log: basic_config(log, logging.WARNING), "", WARNING, id="basicConfig()"),
        pytest.param(lambda log: log.setLevel(logging.ERROR), "", "", id="overlap_sched at ERROR"),
        pytest.param(lambda log: log.setLevel(logging.WARNING), "", PLAIN, id="overlap_sched at WARNING"),
        pytest.param(lambda log: log.setLevel(logging.INFO), PLAIN, PLAIN, id="overlap_sched at INFO"),
        pytest.param(lambda log: log.manager.root.setLevel(logging.ERROR), "", "", id="root at ERROR"),
        pytest.param(lambda log: setattr(log.manager, "disable", logging.INFO), "", PLAIN, id="disable(INFO)"),
    ],
)
def test_a_line_is_shown_as_logging_is_set_up(
    setup: Callable[[logging.Logger], object],
    info: str,
    warning: str,
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup(logger)
    shown = []
    for level in (logging.INFO, logging.WARNING):
        console.say("a line", level)
        shown.append(capsys.readouterr().err)
    assert shown == [info, warning]
    assert logger.handlers == []


def test_standard_error_may_be_closed(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for broken in (closed, None):
        monkeypatch.setattr(sys, "stderr", broken)
        console.say("a line")


def test_the_same_sentence_is_warned_of_once() -> None:
    console.forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for message in ("one", "one", "another", "one"):
            console.warn(message)
        console.forget_warnings()
        console.warn("one")
    assert [(w.category, str(w.message)) for w in caught] == [
        (OverlapSchedWarning, message) for message in ("one", "another", "one")
    ]


def test_where_warnings_are_errors_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    console.forget_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        console.warn("one")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, "one")]


@pytest.mark.parametrize(("given", "rank"), [(None, 0), ("3", 3), ("", 0), ("x", 0)])
def test_the_rank_before_anything_is_distributed(given: str | None, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not dist.is_initialized()
    monkeypatch.delenv("RANK", raising=False)
    if given is not None:
        monkeypatch.setenv("RANK", given)
    assert console.rank() == rank
