"""How lines reach people: shown where nobody has set up logging, and as logging says where somebody has."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch.distributed as dist

from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor import console

ROOT = Path(__file__).resolve().parents[2]


def shown(setup: str, said: str = "say('a line')", torch_logs: str | None = None) -> str:
    """Standard error of a process that sets up logging somehow, and says a line."""
    code = f"import logging, torch\n{setup}\nfrom overlap_sched.inductor.console import say, warn\n{said}\n"
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_LOGS"}
    environment |= {"PYTHONPATH": str(ROOT), **({} if torch_logs is None else {"TORCH_LOGS": torch_logs})}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("", "a line\n"),
        ("logging.basicConfig(level=logging.INFO)", "INFO:overlap_sched:a line\n"),
        ("logging.basicConfig()", ""),  # the user's own logging shows warnings alone
        ("logging.getLogger('overlap_sched').setLevel(logging.WARNING)", ""),
        ("logging.getLogger('overlap_sched').setLevel(logging.INFO)", "a line\n"),
        ("logging.root.setLevel(logging.ERROR)", ""),
        ("logging.disable(logging.INFO)", ""),
        ("import sys; sys.stderr.close()", ""),
    ],
)
def test_an_info_line(setup: str, line: str) -> None:
    assert shown(setup) == line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("", "a line\n"),
        ("logging.basicConfig()", "WARNING:overlap_sched:a line\n"),
        ("logging.getLogger('overlap_sched').setLevel(logging.ERROR)", ""),
    ],
)
def test_a_line_on_what_is_to_be_mended(setup: str, line: str) -> None:
    assert shown(setup, "say('a line', logging.WARNING)") == line


@pytest.mark.slow
@pytest.mark.parametrize(("logs", "times"), [("overlap_sched", 1), ("+overlap_sched", 1), ("-overlap_sched", 0)])
def test_torch_logs_is_obeyed(logs: str, times: int) -> None:
    assert shown("", torch_logs=logs).count("a line") == times


def test_the_same_sentence_is_warned_of_once() -> None:
    console.forget_warnings()
    with pytest.warns(OverlapSchedWarning) as warned:
        console.warn("one")
    console.warn("one")
    with pytest.warns(OverlapSchedWarning) as again:
        console.warn("another")
    console.forget_warnings()
    with pytest.warns(OverlapSchedWarning):
        console.warn("one")
    assert [str(w.message) for w in (*warned, *again)] == ["one", "another"]


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
