"""Sizes as people write them: ``"500MB"``, ``"1GiB"``, ``"5%"``."""

import math
import re
from decimal import Decimal
from fractions import Fraction

from overlap_sched.errors import OptionsError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]*)\s*", re.IGNORECASE)
_FEWEST_BYTES = 2**20
"""Text of a smaller number without a unit is a slip: nobody means 40 bytes by ``"40"``."""
_MOST_PERCENT = 200
_MOST_GIB = 512
"""Without its unit, a number up to here is likely to mean GiB; above, MiB."""


def size_given(name: str, size: int | str, whole_bytes: int, meant: str) -> int:
    """A size in bytes, as :func:`size_bytes` reads it.

    Args:
        name: Of what it is, as it was written.
        size: What was given.
        whole_bytes: Of which percent are.
        meant: What could be written, for messages.

    Raises:
        OptionsError: It is no size; or text of a number without a unit that is too small to be meant in bytes.
    """
    if isinstance(size, str) and (bare := bare_number(size)):
        raise OptionsError(f"{name} is {size!r}, {bare}")
    found = size_bytes(size, whole_bytes)
    if found is None:
        raise OptionsError(f"{name} is {size!r}; write {meant}.")
    return found


def limit_given(name: str, limit: int | str, whole_bytes: int, meant: str) -> int:
    """A memory limit in bytes, as :func:`size_given` reads it, without those in a wrong unit.

    Raises:
        OptionsError: It is no size, none at all, an integer that is hardly one of bytes, or percent of far more.
    """
    if bare := bare_number(limit):
        raise OptionsError(f"{name} is {limit!r}, {bare}")
    percent = size_bytes(limit, 100) or 0 if isinstance(limit, str) and limit.strip().endswith("%") else 0
    if percent > _MOST_PERCENT:
        shown = str(limit).strip()
        raise OptionsError(f"{name} is {shown[:40]!r}, far above what is needed. Did you mean {shown[:2]}%?")
    found = size_given(name, limit, whole_bytes, meant)
    if size_bytes(limit, 2**60) == 0:
        raise OptionsError(f"{name} is {limit!r}, into which nothing fits; write {meant}.")
    return found


def bare_number(size: int | str) -> str:
    """Say what is wrong with ``"5"``, and what may be meant; ``""``: it has a unit, or as many bytes can be meant."""
    match = _SIZE.fullmatch(str(size)) if type(size) in (int, str) else None
    fewest = _FEWEST_BYTES if isinstance(size, str) else 2**10
    if match is None or match[2] or not 0 < (number := Decimal(match[1])) < fewest:
        return ""
    likely = f"{match[1]}{'GiB' if number <= _MOST_GIB else 'MiB'}"
    shown = likely if len(likely) <= 12 else "1GiB"
    return f"a number without a unit. Did you mean {shown}? For bytes write {match[1][:40]}B."


def size_bytes(size: int | str, whole_bytes: int) -> int | None:
    """A size in bytes, rounded down: ``"1.5kB"`` -> 1500; percent are of the whole. None: it is not a size."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    unit = match[2].lower() if match else ""
    if match is None or (unit != "%" and unit not in _UNITS):
        return None
    number = Fraction(Decimal(match[1]))
    return math.floor(number * whole_bytes / 100) if unit == "%" else math.floor(number * _UNITS[unit])
