"""The bytes of a file, decompressed where it is gzipped, and never more of them than allowed; or what its JSON holds.

A gzip stream of 3 MB can hold 3 GB. It is read in parts, and reading stops at the limit.
"""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from overlap_sched.errors import InputTooLargeError
from overlap_sched.problem.limits import Limits
from overlap_sched.problem.paths import nameable

MAGIC = b"\x1f\x8b"
"""How a gzip stream begins."""
_PART = 2**20


class CutShortError(Exception):
    """A gzip stream ends too early."""


class DamagedError(Exception):
    """What should be a gzip stream is none."""


def read_unpacked(path: str | Path, limits: Limits, *, gzipped: bool = False) -> bytes:
    """The content of a file; decompressed where it begins like gzip, or where ``gzipped`` says that it should be.

    Raises:
        OSError: It cannot be read.
        CutShortError, DamagedError: It is not a whole gzip stream.
        InputTooLargeError: There is more than the limit.
    """
    with open(nameable(path), "rb") as file:
        gzipped = gzipped or file.peek(2)[:2] == MAGIC  # a pipe cannot be read twice
        if not gzipped:
            return _bounded(file, path, limits.input_bytes, "")
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _bounded(unpacked, path, limits.input_bytes, " once decompressed")
        except EOFError:
            raise CutShortError from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DamagedError(str(error)) from None


def read_json(
    path: str | Path, limits: Limits, what: str, error: type[Exception], too_many: Callable[[int], str]
) -> Any:
    """Read what a JSON file holds, plain or gzipped; nothing of it is checked but its size, and a problem's keys.

    Args:
        path: The file; gzipped where its name ends in ``.gz``, or it begins so.
        limits: How large it may be.
        what: What it should be, for messages: ``"problem"``.
        error: What is raised where it is none.
        too_many: What to say of so many JSON objects and lists, parsed far larger than their text; ``""``: they may be.

    Raises:
        error: It cannot be read or parsed.
        InputTooLargeError: It is larger than the limits.
    """
    try:
        raw = read_unpacked(path, limits, gzipped=str(path).endswith(".gz"))
    except CutShortError:
        raise error(f"{path}: the gzip stream is cut short. Copy or download the file again.") from None
    except DamagedError as damage:
        raise error(
            f"{path}: is named like gzip but is not ({damage}). Rename it to .json or compress it again."
        ) from None
    except OSError as fault:
        raise error(f"{path}: cannot be read ({fault.strerror}). Check the path.") from None
    if refused := too_many(raw.count(b"{") + raw.count(b"[")):
        raise InputTooLargeError(refused)
    try:
        return json.loads(raw, object_pairs_hook=_object if what == "problem" else None)
    except KeyError as fault:
        raise error(f"{path}: the key {fault} occurs twice in one object. Leave the one that is meant.") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not text. A {what} is JSON, plain or gzipped.") from None
    except json.JSONDecodeError as fault:
        raise error(
            f"{path}: is not JSON at line {fault.lineno}, column {fault.colno} ({fault.msg}). Was it cut short?"
        ) from None
    except (RecursionError, ValueError) as fault:
        raise error(f"{path}: cannot be parsed ({fault}). A {what} is a flat JSON object.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def _bounded(file: BinaryIO | gzip.GzipFile, path: str | Path, limit: int, when: str) -> bytes:
    parts = []
    left = limit
    while part := file.read(min(_PART, left + 1)):
        left -= len(part)
        if left < 0:
            raise InputTooLargeError(
                f"{path}: has more than {limit:,} bytes{when}, which is the limit. "
                "Raise the limit (--max-input-bytes on the command line) if the file is meant to be that large."
            )
        parts.append(part)
    return b"".join(parts)
