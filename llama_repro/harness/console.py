"""What all commands share: a console that is wide enough, errors in one line, a verdict, tables as Markdown."""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from overlap_sched.errors import OverlapSchedError

WIDTH = 132
"""Columns that tables need; a narrower terminal wraps their lines, so that no figure is cut off."""


def wide_console() -> Console:
    """For tables; nothing in them is coloured by guesses at what it means."""
    return Console(width=max(Console().width, WIDTH), highlight=False)


def guarded(name: str, run: Callable[[], int]) -> int:
    """The exit status of a command: 2, after one line on standard error, where it raised an error of ours."""
    try:
        return run()
    except OverlapSchedError as error:
        Console(stderr=True, soft_wrap=True).print(f"{name}: {error}", style="red", markup=False, highlight=False)
        return 2


def verdict(console: Console, remarks: Iterable[str], failures: Sequence[str]) -> int:
    """Print both, and return the exit status: 1 where anything failed."""
    for line in remarks:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in failures:
        console.print(f"FAILED {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 1 if failures else 0


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as documents have it."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))
