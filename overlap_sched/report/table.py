"""What a command prints, as text; and its tables: a title above, what was simulated below, readable at any width.

A table that does not fit is laid out anew rather than cut: labels are folded into at most about three lines; where that
is not enough, each row is a block with a line per number.
"""

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

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
