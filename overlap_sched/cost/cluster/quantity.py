"""Quantities as a person writes them into a file: a number and its unit, in one text."""

import math
import re

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}

BANDWIDTH = {
    **{f"{prefix}B/s": scale for prefix, scale in _PREFIX.items()},
    **{f"{prefix}{bit}/s": scale / 8 for prefix, scale in _PREFIX.items() for bit in ("b", "bit")},
}
"""Bytes per second. ``B`` is a byte, ``b`` or ``bit`` a bit, as the field writes them."""
TIME = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Microseconds."""
RATE = {f"{prefix}{name}": scale for prefix, scale in _PREFIX.items() for name in ("FLOPS", "FLOP/s", "FLOPs/s")}
"""Operations per second."""
EXAMPLES = {"bandwidth": '"50GB/s" or "400Gb/s"', "time": '"12us"', "rate": '"990TFLOPS"'}
_UNITS = {"bandwidth": BANDWIDTH, "time": TIME, "rate": RATE}


def quantity(text: object, what: str) -> float:
    """The number, in bytes per second, microseconds or operations per second.

    Args:
        text: What is written.
        what: ``"bandwidth"``, ``"time"`` or ``"rate"``.

    Raises:
        ValueError: It is not a number with a unit of that kind, or not 0 or more and finite. The message begins with
            what it is ("has no unit") and says what to write.
    """
    example = f"Write {EXAMPLES[what]}."
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"has no unit. {example}")
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"is not a number with a unit. {example}")
    number, unit = float(match[1]), match[2]
    if not unit:
        raise ValueError(f"has no unit. {example}")
    if unit not in _UNITS[what]:
        raise ValueError(f"has the unit {unit!r}, which is no unit of {what}. {example}")
    value = number * _UNITS[what][unit]
    if number < 0:
        raise ValueError(f"is negative. {example}")
    if not math.isfinite(value):
        raise ValueError(f"is not finite. {example}")
    return value


def written(value: float, what: str) -> str:
    """The text that :func:`quantity` reads back as exactly this value."""
    if what == "time":
        return f"{value!r}us"
    unit, prefixes = ("B/s", ("P", "T", "G", "M", "k")) if what == "bandwidth" else ("FLOPS", ("P", "T", "G", "M", "k"))
    for prefix in prefixes:
        text = f"{value / _PREFIX[prefix]:.15g}{prefix}{unit}"
        if value >= _PREFIX[prefix] and quantity(text, what) == value:
            return text
    return f"{value!r}{unit}"
