"""When the line is said: after a quiet time, at the end, once; with a clock that only the test moves."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from overlap_sched.inductor import settled as module
from overlap_sched.inductor.settled import LONGEST_QUIET_S, QUIET_S, Settled
from overlap_sched.inductor.summary import Outcome

DONE = Outcome(True, True, "", 10.0, 0.0)


@dataclass
class FakeTimer:
    """Fires when the test says so."""

    seconds: float
    then: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def join(self, timeout: float | None = None) -> None:
        """There is no thread."""


class Clock:
    """All timers made so far."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def __call__(self, seconds: float, then: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, then))
        return self.timers[-1]

    @property
    def running(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        (timer,) = self.running
        timer.cancelled = True
        timer.then()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lambda text, level: lines.append(text))
    return lines


def test_once_it_is_quiet(said: list[str]) -> None:
    clock = Clock()
    settled = Settled(clock)
    settled.add(DONE)
    settled.add(DONE)
    assert [timer.seconds for timer in clock.running] == [QUIET_S]
    assert said == []
    clock.fire()
    assert [text.split(",")[0] for text in said] == ["overlap_sched: 2 graphs"]
    settled.say()
    assert len(said) == 1
    assert clock.running == []


def test_never_while_torch_compiles(said: list[str]) -> None:
    clock = Clock()
    settled = Settled(clock)
    settled.compiling(True)
    settled.add(DONE)
    assert clock.timers == []
    settled.compiling(False)
    assert len(clock.running) == 1
    settled.compiling(True)
    assert clock.running == []
    settled.compiling(False)
    clock.fire()
    assert len(said) == 1


def test_a_compilation_without_a_graph_says_nothing(said: list[str]) -> None:
    clock = Clock()
    settled = Settled(clock)
    settled.compiling(True)
    settled.compiling(False)
    settled.say()
    assert (clock.timers, said) == ([], [])


def test_further_lines_are_ever_rarer(said: list[str]) -> None:
    clock = Clock()
    settled = Settled(clock)
    seconds = []
    for _ in range(12):
        settled.add(DONE)
        settled.add(DONE)
        seconds.append(clock.running[0].seconds)
        clock.fire()
    assert seconds == [min(QUIET_S * 2**k, LONGEST_QUIET_S) for k in range(12)]
    assert [text.split(",")[0] for text in said] == ["overlap_sched: 2 graphs", *["overlap_sched: 2 more graphs"] * 11]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_speaks_and_all_count(rank: int, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rank", lambda: rank)
    settled = Settled(Clock())
    settled.add(DONE)
    settled.pass_by("x", 2)
    monkeypatch.setattr(module, "rank", lambda: 0)  # the process group is gone by now
    settled.say()
    assert settled.seen == 3
    assert len(said) == 1 - rank


def test_whether_there_are_several_ranks_is_asked_in_time(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "several_ranks", lambda: True)
    settled = Settled(Clock())
    settled.add(Outcome(False, reason="the graph has no collectives"))
    monkeypatch.setattr(module, "several_ranks", lambda: False)
    settled.say()
    assert "fully_shard" in said[0]


def test_words_that_fail_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "summary", fails)
    settled = Settled(Clock())
    settled.add(DONE)
    settled.say()


def test_a_fork_says_nothing_of_its_parents_graphs(said: list[str]) -> None:
    settled = Settled(Clock())
    settled.add(DONE)
    settled.forget()
    settled.say()
    assert said == []


def test_the_timer_does_not_keep_the_process() -> None:
    settled = Settled()
    settled.add(DONE)
    (timer,) = (t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.function == settled.say)
    assert timer.daemon
    timer.cancel()
    settled.forget()


def test_levels_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    settled = Settled(Clock())
    settled.add(Outcome(True, False, "broken"))
    settled.say()
    assert [(r.name, r.levelno) for r in caplog.records] == [("overlap_sched", logging.WARNING)]


def test_the_end_leaves_no_thread_behind(said: list[str]) -> None:
    before = set(threading.enumerate())
    settled = Settled()
    settled.add(DONE)
    (waiting,) = set(threading.enumerate()) - before
    settled.end()
    assert not waiting.is_alive()
    assert len(said) == 1


def test_the_end_waits_for_a_line_that_is_being_said(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, lines = threading.Event(), []

    def slowly(text: str, level: int) -> None:
        begun.set()
        threading.Event().wait(0.05)
        lines.append(text)

    monkeypatch.setattr(module, "say", slowly)
    settled = Settled(lambda seconds, then: module._daemon_timer(0.0, then))
    settled.add(DONE)
    assert begun.wait(10)
    settled.end()
    assert len(lines) == 1
