import io
import threading

import pytest
from rich.console import Console

from overlap_sched.report.progress import log_steps, progress


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


def test_off_a_terminal_a_line_every_ten_seconds_says_what_is_left() -> None:
    lines: list[str] = []
    seconds = iter([0.0, 4.0, 12.0, 16.0, 24.0])
    tell = log_steps(lines.append, lambda: next(seconds))
    for text in ("reading", "run 1 of 11", "run 2 of 11", "run 4 of 11"):
        tell(text)
    assert lines == ["run 1 of 11 (12 s)", "run 4 of 11 (24 s, about 32 s left)"]


def test_a_log_file_gets_none_even_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        with progress(delay_s=0.0) as tell:
            tell("reading")
        assert capsys.readouterr().err == ""
