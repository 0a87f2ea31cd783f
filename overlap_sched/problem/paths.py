"""Names that no file can have: Python raises ``ValueError`` for them where all other names give an ``OSError``."""

import errno
import os
from typing import TypeVar

Path = TypeVar("Path", bound="str | os.PathLike[str]")


def nameable(path: Path) -> Path:
    """The path itself.

    Raises:
        OSError: No system takes a file of that name: a NUL character is in it, or half of a surrogate pair.
    """
    try:
        unusable = "a NUL character" if b"\0" in os.fsencode(path) else ""
    except UnicodeEncodeError:
        unusable = "half of a surrogate pair"
    if unusable:
        raise OSError(errno.EINVAL, f"no file can have this name: it has {unusable}")
    return path
