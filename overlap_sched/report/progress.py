"""A line on the terminal for what is being done; elsewhere a line of text every ten seconds.

What counts says so, as in ``budget 3 of 12: 4.2 GiB``: then the line says how long the rest will take.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

_COUNTED = re.compile(r"\b([\d,]+) of ([\d,]+)\b")


@contextmanager
def progress(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Show what is being done, and for how long, on standard error; yields what takes the name of the next step."""
    # FORCE_COLOR would make rich take any file for a terminal
    console = console or Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)
    if not console.is_interactive:
        yield log_steps(lambda line: print(f"overlap-sched: {line}", file=console.file, flush=True))
        return
    with console.status("starting") as status:
        yield log_steps(lambda line: status.update(Text(line)), every_s=0.0)


def log_steps(
    write: Callable[[str], None], clock: Callable[[], float] = time.monotonic, every_s: float = 10.0
) -> Callable[[str], None]:
    """Return a function that takes the name of the next step, and writes it where ``every_s`` have passed."""
    began = last = clock()
    counts: tuple[float, int] | None = None  # since when something counts, and from where

    def tell(text: str) -> None:
        nonlocal last, counts
        now, left = clock(), ""
        found = _COUNTED.search(text)
        done, total = (int(number.replace(",", "")) for number in (found.groups() if found else "00"))
        counts = (counts or (now, done)) if total else None
        if counts is not None and done > counts[1]:
            left = f", about {(now - counts[0]) / (done - counts[1]) * (total - done + 1):.0f} s left"
        if now - last >= every_s:
            last = now
            write(f"{text} ({now - began:.0f} s{left})")

    return tell
