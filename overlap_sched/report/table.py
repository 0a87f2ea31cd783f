"""What a command prints, as text; and its tables: a title above, what was simulated below, readable at any width.

A table that does not fit is laid out anew rather than cut. The first of these that fits is taken:

1. a line per row, its label folded into at most about two lines;
2. labels on lines of their own, each above its numbers;
3. a block per row, with a line per number.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from overlap_sched.report.units import printable

_ENDLESS = 10_000
"""Columns: more than any table has."""
_INDENT = 2


class ReadableTable(Table):
    """As :class:`rich.table.Table`, laid out anew where it does not fit: see the head of this module.

    Columns aligned to the left hold words; those aligned to the right hold numbers, which are never broken. A column
    of numbers without a heading belongs to the one before it.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what is printed."""
        if not self._numbers() or self._least_width(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        width = options.max_width
        if self.title:
            yield from (*_paragraph(self.title, width, Style(bold=True)), Text())
        widths = [_least_width(column) for column in self._numbers()]
        fits = sum(widths) + len(widths) - 1 <= width
        yield from self._labels_above(widths, width) if fits else self._blocks(width)
        if self.caption:
            yield from (Text(), *_paragraph(self.caption, width, Style()))

    def _least_width(self, console: Console, options: ConsoleOptions) -> int:
        """Below it numbers would be cut, or labels folded into many lines."""
        for column in self.columns:
            longest = max((len(_text(cell)) for cell in _cells(column)), default=0)
            column.min_width = longest if column.justify == "right" else min(longest, -(-longest // 2) + _INDENT)
        return Measurement.get(console, options.update(width=_ENDLESS), self).minimum

    def _numbers(self) -> list[Column]:
        return [column for column in self.columns if column.justify == "right"]

    def _labels(self) -> list[str]:
        """Per row, what its columns of words say."""
        words = [[_text(cell) for cell in column.cells] for column in self.columns if column.justify != "right"]
        return [", ".join(filter(None, cells)) for cells in zip(*words, strict=True)] or [""] * self.row_count

    def _labels_above(self, widths: Sequence[int], width: int) -> Iterator[Text]:
        gap = " " * (2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1)
        numbers = self._numbers()
        yield from _aligned([_text(column.header) for column in numbers], widths, gap, Style())
        yield Text("─" * (sum(widths) + len(gap) * (len(widths) - 1)))
        rows = zip(*([_text(cell) for cell in column.cells] for column in numbers), strict=True)
        for label, cells, style in zip(self._labels(), rows, self._styles(), strict=True):
            yield from _paragraph(label, width, style)
            yield from _aligned(cells, widths, gap, style)

    def _blocks(self, width: int) -> Iterator[Text]:
        numbers = self._numbers()
        named = max(len(_text(column.header)) for column in numbers)
        yield Text("─" * width)
        rows = zip(*([_text(cell) for cell in column.cells] for column in numbers), strict=True)
        for at, (label, cells, style) in enumerate(zip(self._labels(), rows, self._styles(), strict=True)):
            if at:
                yield Text()
            yield from _paragraph(label, width, style)
            lines: list[tuple[str, str]] = []
            for column, cell in zip(numbers, cells, strict=True):
                if _text(column.header) or not lines:
                    lines.append((_text(column.header), cell))
                elif cell:
                    lines[-1] = (lines[-1][0], f"{lines[-1][1]}  {cell}".strip())
            for heading, cell in lines:
                if cell:
                    yield from _paragraph(f"{'':{_INDENT}}{heading:<{named}}  {cell}", width, style)

    def _styles(self) -> list[Style]:
        return [row.style if isinstance(row.style, Style) else Style.parse(row.style or "") for row in self.rows]


def captioned_table(title: str, caption: str, numbers: Sequence[str], first: str | None = None) -> ReadableTable:
    """An empty table for :mod:`rich` to print.

    Args:
        title: In bold above it.
        caption: Below it.
        numbers: Headings of its columns of numbers, which are aligned to the right and never broken; ``""``: more of
            the column before.
        first: Heading of a column of words before them; ``None``: there is none.
    """
    table = ReadableTable(
        title=title,
        caption=caption,
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    if first is not None:
        table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def wrapped(line: str, width: int) -> list[str]:
    """A line in lines of at most ``width`` (longer words stay whole), all but the first further indented."""
    indent = " " * (len(line) - len(line.lstrip()))
    again = indent + " " * _INDENT if indent else ""
    return textwrap.wrap(
        line, width, subsequent_indent=again, break_long_words=False, break_on_hyphens=False
    ) or [""]  # fmt: skip


def _paragraph(text: object, width: int, style: Style) -> Iterator[Text]:
    for line in _text(text).splitlines():
        yield from (Text(part, style) for part in wrapped(line, width))


def _aligned(cells: Sequence[str], widths: Sequence[int], gap: str, style: Style) -> Iterator[Text]:
    """Cells side by side, words in them folded."""
    folded = [
        textwrap.wrap(cell, width) if _is_words(cell) else [cell] for cell, width in zip(cells, widths, strict=True)
    ]
    for at in range(max(map(len, folded))):
        parts = (lines[at] if at < len(lines) else "" for lines in folded)
        line = gap.join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
        if line.strip():
            yield Text(line.rstrip(), style)


def _least_width(column: Column) -> int:
    parts = [
        part for cell in _cells(column) for part in (_text(cell).split() if _is_words(_text(cell)) else [_text(cell)])
    ]
    return max(map(len, parts), default=0)


def _is_words(text: str) -> bool:
    """Not a quantity: it may be folded."""
    return not re.search(r"\d", text)


def _cells(column: Column) -> list[object]:
    return [column.header, *column.cells]


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell or "")


def align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return indented lines, cells below each other: words to the left, quantities and the words above them right."""
    if not rows:
        return []
    *columns, _ = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    sides = ["<" if all(map(_is_words, column)) else ">" for column in columns]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)]
        lines.append("  " + "  ".join([*cells, row[-1]]))
    return lines


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
