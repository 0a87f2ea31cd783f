"""Sizes and times on the command line."""

import math
import re

from overlap_sched.errors import OptionsError
from overlap_sched.problem import MAX_TOTAL_BYTES
from overlap_sched.problem.sizes import limit_given, size_given

_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)\s*")
_MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def limit_bytes(option: str, text: str, original_peak_bytes: int) -> int:
    """A memory limit in bytes: ``80GB``, ``24GiB``, or percent of the original peak."""
    meant = "a size with a unit (80GB, 24GiB) or percent of the original peak (90%)"
    read = size_given if option == "--host-memory" else limit_given  # of the host's it may be none
    found = read(option, text, original_peak_bytes, meant)
    if found > MAX_TOTAL_BYTES:
        raise OptionsError(f"{option} is {shortened(text)!r}; write {meant}.")
    return found


def time_us(option: str, text: str) -> float:
    """A time in microseconds: ``"120ms"`` -> 120000.0."""
    match = _TIME.fullmatch(text)
    us = math.inf if match is None else float(match[1]) * _MICROSECONDS[match[2]]
    if not math.isfinite(us):
        raise OptionsError(f"{option} is {shortened(text)!r}; write a time with its unit: 850us, 120ms or 1.5s.")
    return us


def shortened(text: str) -> str:
    """At most 40 characters of what was given, for a message."""
    return text if len(text) <= 40 else text[:37] + "..."
