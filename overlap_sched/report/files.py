"""Writing result files: whole or not at all."""

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from overlap_sched.errors import OutputError
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.file import nameable


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file so that nobody ever sees half of it: a neighbour is written, then takes its name.

    Links are followed. What is not a plain file (``/dev/stdout``, a pipe) is written to directly.

    Raises:
        OutputError: The folder is missing, the disk is full, or the like.
    """
    try:
        target = Path(os.path.realpath(nameable(path)))
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with open(path, "wb") as out:
                out.write(data)
            return
        _replace(target, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _not_writable(path, error.strerror or str(error)) from None


def check_writable(path: str | Path) -> None:
    """Find out before the work is done that its result could not be written.

    Raises:
        OutputError: The path is a folder, or in one that is missing or not writable.
    """
    try:
        target = Path(os.path.realpath(nameable(path)))
    except OSError as error:
        raise _not_writable(path, error.strerror or str(error)) from None
    if target.is_dir():
        raise _not_writable(path, "it is a folder")
    if not target.parent.is_dir():
        raise _not_writable(path, f"there is no folder {target.parent}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise _not_writable(path, "permission denied")


def make_folder(path: str | Path) -> None:
    """Make a folder, and those that it is in."""
    try:
        Path(nameable(path)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: no such folder can be made ({error.strerror}). Name another one.") from None


def _not_writable(path: str | Path, why: str) -> OutputError:
    return OutputError(f"{path}: cannot be written ({why}). Name a file in a folder that exists and is writable.")


def _replace(target: Path, data: bytes) -> None:
    neighbour = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(neighbour, "wb") as out:
            out.write(data)
        if target.exists():
            shutil.copymode(target, neighbour)
        os.replace(neighbour, target)
    except BaseException:  # also on Ctrl-C: leave nothing behind
        with suppress(OSError):
            neighbour.unlink(missing_ok=True)
        raise


def write_order(path: str | Path, problem: Problem, order: Order) -> None:
    """Write an order as a JSON list of node names; ``report`` reads it."""
    write_file(path, (json.dumps(problem.names(order), separators=(",", ":")) + "\n").encode())
