"""Sizes as people write them (``"500MB"``, ``"1GiB"``, ``"5%"``), and the settings of torch's caching allocator.

Keys of ``PYTORCH_ALLOC_CONF`` and how they are read: ``c10/core/AllocatorConfig.cpp`` (torch 2.13 to 2.15)::

    expandable_segments:True          one segment that grows by pages, instead of one segment per large request
    max_split_size_mb:512             blocks from this size on are not split, and serve only requests of about that
    max_non_split_rounding_mb:20      how much larger such a block may be than the request
    large_segment_size_mb:20          segments for requests below 10 MiB, and pages of the large pool
    roundup_power2_divisions:4        requests are rounded up to so many steps between two powers of two
    roundup_power2_divisions:[256:1,512:2,>:4]      the same by size in MiB

Others (``garbage_collection_threshold``, which needs a memory fraction to be set; ``pinned_*``; ``release_lock_*``)
change nothing of what a step reserves. ``backend:cudaMallocAsync`` is another allocator: it is not replayed.
"""

import math
import os
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from overlap_sched.errors import OptionsError

MAX_FLOAT = sys.float_info.max
MIB = 2**20
NO_LIMIT = 2**63
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where torch reads its settings; the first that is set counts."""

_INTERVALS = 16
"""Sizes from 1 MiB to 64 GiB, by powers of two (``kRoundUpPowerOfTwoIntervals``)."""
_ENTRY = r"(\w+):(\[[^\[\]]*\]|[^,\[\]]+)(?:,|$)"

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


def parse_size(name: str, size: int | str, whole_bytes: int, meant: str) -> int:
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


def parse_limit(name: str, limit: int | str, whole_bytes: int, meant: str) -> int:
    """A memory limit in bytes, as :func:`parse_size` reads it, without those in a wrong unit.

    Raises:
        OptionsError: It is no size, none at all, an integer that is hardly one of bytes, or percent of far more.
    """
    if bare := bare_number(limit):
        raise OptionsError(f"{name} is {limit!r}, {bare}")
    percent = size_bytes(limit, 100) or 0 if isinstance(limit, str) and limit.strip().endswith("%") else 0
    if percent > _MOST_PERCENT:
        shown = str(limit).strip()
        raise OptionsError(f"{name} is {shown[:40]!r}, far above what is needed. Did you mean {shown[:2]}%?")
    found = parse_size(name, limit, whole_bytes, meant)
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


def show_number(number: float) -> str:
    """A number for an error message; of a huge integer, how large it is."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"{'-' if number < 0 else ''}2**{number.bit_length() - 1} or more"
    return str(number)


@dataclass(frozen=True)
class AllocatorSettings:
    """How the caching allocator is set up; the defaults are torch's.

    Attributes:
        expandable_segments: One segment per pool that grows by pages of 2 MiB (small requests) or 20 MiB.
        max_split_size_bytes: Blocks from this size on are not split.
        max_non_split_rounding_bytes: How much larger than a request an unsplit block may be.
        large_segment_size_bytes: Segments for requests of 1 to 10 MiB; pages of the large pool.
        roundup_power2_divisions: Steps between two powers of two, for sizes from 2**(20 + k) bytes; 0: none. Empty:
            none for all.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int = NO_LIMIT
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_size_bytes: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = ()

    def divisions(self, size: int) -> int:
        """Steps between two powers of two for a request of so many bytes (``roundup_power2_divisions(size)``)."""
        if not self.roundup_power2_divisions:
            return 0
        return self.roundup_power2_divisions[min(max(size.bit_length() - 1 - 20, 0), _INTERVALS - 1)]


PLAIN = AllocatorSettings()
"""torch's default."""
EXPANDABLE = AllocatorSettings(expandable_segments=True)
"""``expandable_segments:True``."""


def parse_allocator(text: str) -> AllocatorSettings | None:
    """``plain``, ``expandable``, or settings as in ``PYTORCH_ALLOC_CONF``; ``none``: no allocator.

    Raises:
        OptionsError: It is none of these.
    """
    known = {"none": None, "plain": PLAIN, "expandable": EXPANDABLE}
    return known[text] if text in known else allocator_settings(text)


def settings_in_environment() -> str:
    """Return what this process gives torch's allocator, ``""`` where nothing (or nothing that can be read) is set."""
    text = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
    try:
        allocator_settings(text)
    except OptionsError:
        return ""  # torch says what is wrong with it, where it reads it
    return text


def allocator_settings(text: str) -> AllocatorSettings:
    """Settings as ``PYTORCH_ALLOC_CONF`` gives them; keys that change nothing here are passed over.

    Raises:
        OptionsError: It is not ``key:value,key:value``, or a value is not one that torch takes.
    """
    given = _entries("".join(text.split()))
    expandable = given.get("expandable_segments", "False")
    if expandable not in ("True", "False"):
        raise OptionsError(f"allocator has expandable_segments:{expandable}; it is True or False.")
    return AllocatorSettings(
        expandable_segments=expandable == "True",
        max_split_size_bytes=_mib(given, "max_split_size_mb", NO_LIMIT),
        max_non_split_rounding_bytes=_mib(given, "max_non_split_rounding_mb", 20 * MIB),
        large_segment_size_bytes=_mib(given, "large_segment_size_mb", 20 * MIB),
        roundup_power2_divisions=_divisions(given.get("roundup_power2_divisions", "")),
    )


def _entries(text: str) -> dict[str, str]:
    if not re.fullmatch(f"(?:{_ENTRY})*", text):
        raise OptionsError(
            f"allocator is {text!r}, which cannot be read. Write it as in PYTORCH_ALLOC_CONF: 'expandable_segments:"
            "True,max_split_size_mb:512', or '' for torch's defaults."
        )
    return dict(re.findall(_ENTRY, text))


def _mib(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key)
    if text is None:
        return default
    least = 20 if key == "max_split_size_mb" else 1
    if not text.isdecimal() or not least < int(text) < 2**40:
        raise OptionsError(f"allocator has {key}:{text}; it is a whole number of MiB above {least}.")
    return int(text) * MIB


def _divisions(text: str) -> tuple[int, ...]:
    """``4``, or ``[256:1,512:2,>:4]``: as in ``parseRoundUpPower2Divisions``."""
    if not text.startswith("["):
        return (_power_of_two(text),) * _INTERVALS if text else ()
    result, last = [0] * _INTERVALS, 0
    for at, (size, _, steps) in enumerate(pair.partition(":") for pair in text[1:-1].split(",")):
        begin = last + 1  # ">": all above the last; the first one holds for all below, too
        if size == ">":
            last = _INTERVALS - 1
        else:
            last = min(_power_of_two(size).bit_length() - 1, _INTERVALS - 1)
            begin = last if at else 0
        result[begin : last + 1] = [_power_of_two(steps)] * (last + 1 - begin)
    return tuple(result)


def _power_of_two(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if number < 1 or number & (number - 1):
        raise OptionsError(f"allocator has {text!r} in roundup_power2_divisions; sizes and divisions are powers of 2.")
    return number
