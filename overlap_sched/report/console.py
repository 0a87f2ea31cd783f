"""What the command prints, as text: tables and lines for the width and the abilities of standard output."""

import os
import sys
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.text import Text

from overlap_sched.report.table import wrapped
from overlap_sched.report.units import printable


def shown(*parts: RenderableType) -> str:
    """Tables, and text, as they are to be printed.

    Escape codes (bold, dim; there is no colour) only where standard output is a terminal and ``NO_COLOR`` is not set.
    Lines of text are wrapped where somebody sees them (a terminal, or ``COLUMNS`` is set), and stay whole in files and
    pipes. Nothing in a text is taken for markup: titles hold names from files.
    """
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()  # FORCE_COLOR says nothing of a pipe
    console = Console(
        file=sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=False if plain else None,
        color_system=None if plain else "auto",
    )
    watched = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, str):
                console.print(Text(_fitted(part, console.width) if watched else part), soft_wrap=True)
            else:
                console.print(part)
    return captured.get().rstrip("\n")


def _fitted(text: str, width: int) -> str:
    return "\n".join(short for line in text.split("\n") for short in wrapped(line, width))


def complain(text: str) -> None:
    """Print one line on standard error, whatever is in the text."""
    with suppress(BrokenPipeError):
        print(f"overlap-sched: {' '.join(printable(line) for line in text.splitlines())}", file=sys.stderr)
