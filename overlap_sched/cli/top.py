"""``--top`` and ``--all``: how much of a long list is shown."""

import argparse

from overlap_sched.errors import OptionsError

TOP = 10


def add_top(parser: argparse.ArgumentParser, first: str, every: str) -> None:
    """Add both; they exclude each other."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--top", type=int, metavar="N", help=f"{first} (default: {TOP}; 0: only the totals)")
    which.add_argument("--all", action="store_true", help=every)


def check_top(options: argparse.Namespace, what: str) -> None:
    """Refuse a number that cannot be."""
    if options.top is not None and options.top < 0:
        raise OptionsError(f"--top is {options.top}; it is a number of {what}, 0 or more.")


def top_of(options: argparse.Namespace) -> int | None:
    """How many are shown; ``None``: all."""
    if options.all:
        return None
    return TOP if options.top is None else int(options.top)
