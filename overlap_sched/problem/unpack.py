"""The bytes of a file, decompressed where it is gzipped, and never more of them than allowed.

A gzip stream of 3 MB can hold 3 GB. It is read in parts, and reading stops at the limit.
"""

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

from overlap_sched.errors import InputTooLargeError
from overlap_sched.problem.limits import Limits

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
    with open(path, "rb") as file:
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
