"""Tables at 40, 80 and 120 columns, word by word; progress; what is written to a terminal and what to a file."""

import io
import sys
import threading

import pytest
from rich.console import Console

from overlap_sched.report.terminal import ReadableTable, captioned_table, log_steps, progress, shown, wrapped


def drawn(table: ReadableTable, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(table)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    return lines


def steps() -> ReadableTable:
    table = captioned_table("two graphs", "Simulated.", ("original", "scheduled", "change"), first="")
    table.add_row("peak memory of all live tensors", "33.655 GiB", "33.700 GiB", "+0.1 %", style="bold")
    table.add_row("retries", "0", "out of memory")
    return table


WHOLE = [
    "two graphs",
    "",
    "                                      original       scheduled   change",
    " ───────────────────────────────────────────────────────────────────────",
    "  peak memory of all live tensors   33.655 GiB      33.700 GiB   +0.1 %",
    "  retries                                    0   out of memory",
    "",
    "Simulated.",
]


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_that_fits_has_a_line_per_row(width: int) -> None:
    assert drawn(steps(), width) == WHOLE


def test_labels_are_folded_before_they_stand_alone() -> None:
    assert drawn(steps(), 60)[4:7] == [
        "  peak memory of all   33.655 GiB      33.700 GiB   +0.1 %",
        "  live tensors",
        "  retries                       0   out of memory",
    ]


@pytest.mark.parametrize("width", range(24, 100, 7))
def test_no_word_and_no_number_is_lost_at_any_width(width: int) -> None:
    found, wanted = (" ".join(drawn(steps(), columns)).replace("─", "").split() for columns in (width, 200))
    assert set(found) == set(wanted)
    assert len(found) >= len(wanted)


def test_a_table_of_words_is_folded() -> None:
    table = captioned_table("", "", (), first="")
    table.add_row("one two three four")
    file = io.StringIO()
    Console(file=file, width=10, color_system=None).print(table)
    assert [word for word in file.getvalue().split() if "─" not in word] == ["one", "two", "three", "four"]


def test_lines_are_wrapped_with_their_indent() -> None:
    assert wrapped("  blocked by memory: launched sooner", 20) == ["  blocked by memory:", "    launched sooner"]
    assert wrapped("all_gather_into_tensor_355 is long", 12) == ["all_gather_into_tensor_355", "is long"]
    assert wrapped("", 12) == [""]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


class Terminal(io.StringIO):
    """A file that says that it is one."""

    def isatty(self) -> bool:
        return True


def test_bold_on_a_terminal_only(terminal: pytest.MonkeyPatch) -> None:
    terminal.setattr(sys, "stdout", Terminal())
    assert "\x1b[1m" in shown(steps())
    terminal.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(steps())
    terminal.delenv("NO_COLOR")
    terminal.setenv("TERM", "dumb")
    assert "\x1b" not in shown(steps())
    terminal.setenv("TERM", "xterm-256color")
    terminal.setenv("FORCE_COLOR", "1")
    terminal.setattr(sys, "stdout", io.StringIO())
    assert "\x1b" not in shown(steps())


def test_text_is_wrapped_where_somebody_sees_it(terminal: pytest.MonkeyPatch) -> None:
    text = "[bold]gather[/bold] :warning: is\n  launched at position 2"
    terminal.setenv("COLUMNS", "20")
    assert shown(text).split("\n") == ["[bold]gather[/bold]", ":warning: is", "  launched at", "    position 2"]
    terminal.delenv("COLUMNS")
    terminal.setattr(sys, "stdout", io.StringIO())
    assert shown(text + " x" * 100) == text + " x" * 100


def test_says_what_is_being_done() -> None:
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=True, force_interactive=True, width=60)) as tell:
        tell("scheduling [8,441] nodes")
        for _ in range(200):
            if "scheduling [8,441] nodes" in file.getvalue():
                break
            threading.Event().wait(0.02)
    assert "scheduling [8,441] nodes" in file.getvalue()


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
        with progress() as tell:
            tell("reading")
        assert capsys.readouterr().err == ""
