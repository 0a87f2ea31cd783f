"""A line on the terminal for what takes longer than two seconds; elsewhere a line of text every ten.

What counts says so, as in ``budget 3 of 12: 4.2 GiB``: then the line has a bar, and how long the rest will take.
"""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.task import Candidate, Stage, Stages

_COUNTED = re.compile(r"\b([\d,]+) of ([\d,]+)\b")


class _Bar(BarColumn):
    """Only of what counts."""

    def render(self, task: Task) -> Text | ProgressBar:  # type: ignore[override]
        return super().render(task) if task.fields["counted"] else Text("")


class _Left(TimeRemainingColumn):
    """Only of what counts, as soon as it can be told."""

    max_refresh = 0.0  # else half a second of the step before is shown

    def render(self, task: Task) -> Text:
        known = task.fields["counted"] and task.time_remaining is not None
        return Text(f"{super().render(task)} left" if known else "")


@contextmanager
def progress(console: Console | None = None, delay_s: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Show what is being done, and for how long, on standard error.

    Yields a function that takes the name of the next step. Nothing is shown before ``delay_s``.
    """
    # FORCE_COLOR would make rich take any file for a terminal
    console = console or Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)
    if not console.is_interactive:
        yield log_steps(lambda line: print(line, file=console.file, flush=True))
        return
    what = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), what, _Bar(bar_width=20), TimeElapsedColumn(), _Left())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("starting", total=None, counted=False)

    def told(text: str) -> None:
        counted = _count_in(text)
        done, total = counted or (0, None)
        bar.update(task, description=text, completed=done, total=total, counted=counted is not None)

    timer = threading.Timer(delay_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield told
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _count_in(text: str) -> tuple[int, int] | None:
    found = _COUNTED.search(text)
    return None if found is None else (int(found[1].replace(",", "")), int(found[2].replace(",", "")))


def log_steps(
    write: Callable[[str], None], clock: Callable[[], float] = time.monotonic, every_s: float = 10.0
) -> Callable[[str], None]:
    """Return a function that takes the name of the next step, and writes it where ``every_s`` have passed."""
    began = last = clock()
    counts: tuple[float, int] | None = None  # since when something counts, and from where

    def tell(text: str) -> None:
        nonlocal last, counts
        now, counted, left = clock(), _count_in(text), ""
        if counted is None:
            counts = None
        elif counts is None:
            counts = (now, counted[0])
        elif counted[0] > counts[1]:
            left = f", about {(now - counts[0]) / (counted[0] - counts[1]) * (counted[1] - counted[0] + 1):.0f} s left"
        if now - last >= every_s:
            last = now
            write(f"overlap-sched: {text} ({now - began:.0f} s{left})")

    return tell


def told_stages(tell: Callable[[str], None], what: str, stages: Stages = ALL) -> Stages:
    """All stages, each of which says that it begins: ``scheduling 8,052 nodes: stage 4/6, shift``.

    They take too unlike times to say what is left.
    """
    count, of = itertools.count(1), len(stages.all)

    def telling(stage: Stage) -> Stage:
        at = next(count)

        def run(*given: Any) -> Candidate:
            tell(f"{what}: stage {at}/{of}, {stage.name}")
            return stage.run(*given)

        return replace(stage, run=run)

    return stages.each(telling)
