"""Quantities as people read them (inside the package they are microseconds and bytes), lists, and complaints."""

import sys
from collections.abc import Sequence
from contextlib import suppress


def time_unit(us: float) -> tuple[float, str]:
    """(microseconds in the unit, its name) for times around ``us``; ms up to ten seconds, ns only where us are 0.0."""
    if 0 < us < 0.05:
        return 1e-3, "ns"
    if us < 1e3:
        return 1.0, "us"
    return (1e3, "ms") if us < 1e7 else (1e6, "s")


def memory_unit(nbytes: float) -> tuple[int, str]:
    """(bytes in the unit, its name) for the axis of a picture whose largest value is ``nbytes``."""
    return (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")


def duration(us: float) -> str:
    """``12.0 us``, ``3.41 ms``, ``2,281.8 ms`` or ``12.34 s``: microseconds in the unit that fits."""
    scale, name = time_unit(us)
    digits = 1 if name in ("ns", "us") or (us >= 1e5 and name == "ms") else 2
    return f"{us / scale:,.{digits}f} {name}"


def from_to(before: str, after: str) -> str:
    """``33.655 -> 33.700 GiB``: two quantities with one unit between them, where it is the same."""
    number, _, unit = before.rpartition(" ")
    return f"{number if after.endswith(f' {unit}') else before} -> {after}"


def count(number: int, what: str) -> str:
    """``1 graph``, ``2,000 graphs``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(count: int) -> str:
    """Bytes as ``12 B``, ``1.5 KiB``, ``24.0 MiB`` or ``33.655 GiB``."""
    if count < 2**10:
        return f"{count} B"
    if count < 2**20:
        return f"{count / 2**10:.1f} KiB"
    if count < 2**30:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / 2**30:,.3f} GiB"


def change(before: float, after: float) -> str:
    """``-36.8 %``: how ``after`` differs from ``before``; a dash where there is nothing to compare with."""
    if before == after:
        return "+0.0 %"
    text = f"{100 * (after / before - 1):+.1f} %" if before else "-"
    return "+0.0 %" if text == "-0.0 %" else text


def printable(text: str) -> str:
    """Names come from files: control characters (a terminal would obey them) are shown escaped."""
    return text if text.isprintable() else ascii(text)[1:-1]


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: so many of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def complain(text: str) -> None:
    """Print one line on standard error, whatever is in the text."""
    with suppress(BrokenPipeError):
        print(f"overlap-sched: {' '.join(printable(line) for line in text.splitlines())}", file=sys.stderr)
