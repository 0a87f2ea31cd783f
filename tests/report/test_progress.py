import io
import threading

import pytest
from rich.console import Console

from overlap_sched.report.progress import progress


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=60)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_says_what_is_being_done() -> None:
    console = terminal()
    with progress(console, delay_s=0.0) as tell:
        tell("scheduling [8,441] nodes")
        for _ in range(200):
            if "scheduling [8,441] nodes" in written(console):
                break
            threading.Event().wait(0.02)
    assert "scheduling [8,441] nodes" in written(console)


def test_quick_work_shows_nothing() -> None:
    console = terminal()
    with progress(console, delay_s=60.0) as tell:
        tell("reading")
    assert written(console) == ""


def test_nobody_watching_shows_nothing() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress(console, delay_s=0.0) as tell:
        tell("reading")
    assert written(console) == ""


def test_a_log_file_gets_none_even_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress(delay_s=0.0) as tell:
        tell("reading")
    assert capsys.readouterr().err == ""
