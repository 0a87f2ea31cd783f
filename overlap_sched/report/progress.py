"""A line on the terminal for what takes longer than two seconds; silence where nobody watches."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress(console: Console | None = None, delay_s: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Show what is being done, and for how long, on standard error.

    Yields a function that takes the name of the next step. Nothing is shown before ``delay_s`` or off a terminal.
    """
    # FORCE_COLOR would make rich take any file for a terminal
    console = console or Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)
    if not console.is_interactive:
        yield lambda text: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("starting", total=None)
    timer = threading.Timer(delay_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: bar.update(task, description=text)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
