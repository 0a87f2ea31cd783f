"""The frame of the tables that people read: a title above, what was simulated below."""

from collections.abc import Sequence

from rich import box
from rich.table import Table


def captioned_table(title: str, caption: str, numbers: Sequence[str], first: str | None = None) -> Table:
    """An empty table for :mod:`rich` to print.

    Args:
        title: In bold above it.
        caption: Below it.
        numbers: Headings of its columns of numbers, which are aligned to the right and never broken.
        first: Heading of a column of words before them; ``None``: there is none.
    """
    table = Table(
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
