"""The text of a dump file, however it was saved: gzipped, UTF-8 or UTF-16, copied out of an HTML page."""

import html
import re
from pathlib import Path

from overlap_sched.dump.log import without_colours
from overlap_sched.errors import DumpFileError
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits
from overlap_sched.problem.unpack import CutShortError, DamagedError, read_unpacked

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_NAMES = {"utf-8": "UTF-8", "utf-16": "UTF-16", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16"}
_ESCAPED = re.compile(r"&(?:quot|#x27|#39);")
_CLASS = b"class Repro"


def read_lines(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The lines of a file, whatever ends them.

    Bytes that are not UTF-8 are let through where the file is a dump all the same: torch copies environment variables
    and comments into it as they are.

    Raises:
        DumpFileError: It cannot be read, or is not text.
        InputTooLargeError: It is larger than the limit.
    """
    try:
        data = read_unpacked(path, limits)
        text = data.decode("utf-16" if data[:2] in _UTF16 else "utf-8-sig", "replace" if _CLASS in data else "strict")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DumpFileError(
            f"{path}: cannot be read ({reason}). Check the path, and the download if it is gzipped."
        ) from None
    except (CutShortError, DamagedError):
        raise DumpFileError(f"{path}: the gzip data is cut short or damaged. Fetch the file again.") from None
    except UnicodeDecodeError as error:
        raise DumpFileError(
            f"{path}: is not text (byte {error.start} is not {_NAMES[error.encoding]}). A dump is a Python file."
        ) from None
    if "'" not in text and _ESCAPED.search(text):  # a graph with collectives has quotes
        text = html.unescape(text)
    return re.split(r"\r\n|\r|\n", without_colours(text))
