"""When compiling has settled, one line on what became of all graphs.

torch does not say that it has compiled everything: a backward may be compiled in the first step, another graph when a
shape changes. So the line is said when nothing has been compiled for ten seconds, when the plug-in is switched off, or
when the process ends, whichever comes first. What is compiled later gets further lines, each after twice the quiet time
of the one before. A sleeping thread waits meanwhile; nothing is done per step.
"""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Protocol

from overlap_sched.inductor.console import rank, say, several_ranks
from overlap_sched.inductor.summary import Outcome, summary

QUIET_S = 10.0
LONGEST_QUIET_S = 3600.0
LAST_WORDS_S = 1.0
"""How long the end of the process waits for a line that is being said by then."""


class Timer(Protocol):
    """What :class:`threading.Timer` is here."""

    def cancel(self) -> None:
        """Do not fire any more."""

    def join(self, timeout: float | None = None) -> None:
        """Wait, at most so many seconds, until it has fired or is cancelled."""


def _daemon_timer(seconds: float, then: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    return timer


class Settled:
    """Collects what became of graphs, and says it in one line when nothing more comes.

    Args:
        timer: Makes something that calls a function after so many seconds, unless cancelled.
    """

    def __init__(self, timer: Callable[[float, Callable[[], None]], Timer] = _daemon_timer) -> None:
        self._make_timer = timer
        self._timer: Timer | None = None  # what is to fire next
        self._last: Timer | None = None  # what was made last: it may be saying its line
        self.forget()

    def forget(self) -> None:
        """As if nothing had been compiled: in a process that was forked, where no timer runs."""
        self._lock = threading.Lock()
        self._timer = self._last = None
        self._outcomes: list[Outcome] = []
        self._passed_by: list[str] = []
        self._cached = 0
        self._loaded: list[bool] = []
        self._compiling = False
        self._lines = 0
        self._ranks = False
        self.seen = 0
        """Graphs of which something is known."""

    def add(self, outcome: Outcome) -> None:
        """A graph came to us, and this became of it."""
        with self._lock:
            self.seen += 1
            if self._speaks():
                self._outcomes.append(outcome)
                self._wait()

    def pass_by(self, why: str, graphs: int = 1) -> None:
        """Graphs were compiled without us."""
        with self._lock:
            self.seen += graphs
            if self._speaks():
                self._passed_by += [why] * graphs
                self._wait()

    def from_cache(self, graphs: int) -> None:
        """Torch found graphs in its caches, where they have our order."""
        with self._lock:
            self.seen += graphs
            if self._speaks():
                self._cached += graphs
                self._wait()

    def loaded(self, communicates: bool) -> None:
        """Code from torch's caches is used, and whether it has collectives. Not known of all such code."""
        with self._lock:
            self._loaded.append(communicates)

    def compiling(self, now: bool) -> None:
        """Note whether torch compiles: while it does, nothing is settled."""
        with self._lock:
            self._compiling = now
            self._wait()

    def say(self) -> None:
        """Say it now, if there is anything to say. Never raises."""
        try:
            with self._lock:
                outcomes, passed_by, cached, loaded = self._outcomes, self._passed_by, self._cached, self._loaded
                self._outcomes, self._passed_by, self._cached, self._loaded = [], [], 0, []
                self._wait()
                if not (outcomes or passed_by or cached):
                    return
                again, self._lines = bool(self._lines), self._lines + 1
            line = summary(outcomes, passed_by, cached, loaded, ranks=self._ranks, again=again)
            say(line.text, line.level)
        except Exception:  # words for people must not end a job
            return

    def end(self) -> None:
        """Say it, and leave no thread behind. Never raises.

        A thread that still runs when the interpreter is taken down is ended in the middle of what it does.
        """
        self.say()
        if self._last is not None:
            self._last.join(LAST_WORDS_S)

    def _speaks(self) -> bool:
        """Rank 0 speaks for all. Asked while torch compiles: the process group may be gone when the line is said."""
        self._ranks = self._ranks or several_ranks()
        return rank() == 0

    def _wait(self) -> None:
        """The quiet time starts again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (self._outcomes or self._passed_by or self._cached) and not self._compiling:
            seconds = min(QUIET_S * 2**self._lines, LONGEST_QUIET_S)
            self._timer = self._last = self._make_timer(seconds, self.say)


settled = Settled()
"""Of this process."""
atexit.register(settled.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=settled.forget)
