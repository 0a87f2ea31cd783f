"""What a command prints, as text; its tables: a title above, what was simulated below, readable at any width; progress.

A table that does not fit is laid out anew rather than cut: labels are folded into at most about three lines; where that
is not enough, each row is a block with a line per number. Progress is a line on the terminal, elsewhere a line of text
every ten seconds; what counts says so (``budget 3 of 12: 4.2 GiB``), and then the line says how long the rest takes.
"""

import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

_INDENT, _CAPTION = 2, 100


class ReadableTable(Table):
    """As :class:`rich.table.Table`, laid out anew where it does not fit: see the head of this module.

    Columns aligned to the left hold words; those aligned to the right hold numbers, which are never broken.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what is printed."""
        width = options.max_width
        yield from _paragraph(self.title, width, Style(bold=True))
        for column in self.columns if self._numbers() else ():
            longest = max(map(len, _texts(column)))
            column.min_width = longest if column.justify == "right" else min(longest, -(-longest // 3) + _INDENT)
        title, caption, self.title, self.caption = self.title, self.caption, None, None
        wide = Measurement.get(console, options.update(width=10_000), self).minimum > width
        yield from self._blocks(width) if wide and self._numbers() else super().__rich_console__(console, options)
        self.title, self.caption = title, caption
        yield from _paragraph(self.caption, min(width, _CAPTION), Style())

    def _numbers(self) -> list[Column]:
        return [column for column in self.columns if column.justify == "right"]

    def _blocks(self, width: int) -> Iterator[Text]:
        named = max(len(_texts(column)[0]) for column in self._numbers())
        for at, row in enumerate(self.rows):
            yield Text("─" * width if at == 0 else "")
            texts, style = [(of, _texts(of)[1 + at]) for of in self.columns], Style.parse(str(row.style or ""))
            yield from _paragraph(", ".join(text for of, text in texts if of.justify != "right" and text), width, style)
            for column, text in texts:
                if column.justify == "right" and text:
                    yield from _paragraph(f"{'':{_INDENT}}{_texts(column)[0]:<{named}}  {text}", width, style)
        yield Text()


def captioned_table(
    title: str, caption: str, numbers: Sequence[str], first: str | None = None, rows: Iterable[Sequence[str]] = ()
) -> ReadableTable:
    """Return a table for :mod:`rich` to print.

    Args:
        title: In bold above it.
        caption: Below it.
        numbers: Headings of its columns of numbers, which are aligned to the right and never broken.
        first: Heading of a column of words before them; ``None``: there is none.
        rows: Cells of each row.
    """
    table = ReadableTable(title=title, caption=caption, box=box.SIMPLE_HEAD)
    if first is not None:
        table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def wrapped(line: str, width: int) -> list[str]:
    """Break a line into lines of at most ``width`` (longer words stay whole), all but the first further indented."""
    indent = " " * (len(line) - len(line.lstrip()))
    again = indent + " " * _INDENT if indent else ""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, width, subsequent_indent=again, **whole) or [""]  # type: ignore[arg-type]


def _paragraph(text: object, width: int, style: Style) -> Iterator[Text]:
    for line in str(text or "").splitlines():
        yield from (Text(part, style) for part in wrapped(line, width))


def _texts(column: Column) -> list[str]:
    return [str(cell or "") for cell in (column.header, *column.cells)]


def align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return indented lines, cells below each other: words to the left, quantities and the words above them right."""
    columns = [*zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    sides = [">" if any(map(str.isdigit, "".join(column))) else "<" for column in columns]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        lines.append("  ".join(["", *cells[:-1], row[-1]]))
    return lines


def shown(*parts: RenderableType) -> str:
    """Return tables, and text, as they are to be printed.

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
                lines = part.split("\n")
                lines = [short for line in lines for short in wrapped(line, console.width)] if watched else lines
                console.print(Text("\n".join(lines)), soft_wrap=True)
            else:
                console.print(part)
    return captured.get().rstrip("\n")


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
