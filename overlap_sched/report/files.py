"""Writing result files: whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overlap_sched.errors import OutputError
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.file import nameable


@contextmanager
def _explain(path: str | Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written ({why}). Name a file in a folder that exists and is writable."
        ) from None


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file so that nobody ever sees half of it: a neighbour is written, then takes its name.

    Links are followed. What is not a plain file (``/dev/stdout``, a pipe) is written to directly.

    Raises:
        OutputError: The folder is missing, the disk is full, or the like.
    """
    with _explain(path):
        target = Path(os.path.realpath(nameable(path)))
        if target.exists() and not target.is_file():
            Path(path).write_bytes(data)
            return
        neighbour = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            neighbour.write_bytes(data)
            if target.exists():
                shutil.copymode(target, neighbour)
            os.replace(neighbour, target)
        except BaseException:  # also on Ctrl-C: leave nothing behind
            with suppress(OSError):
                neighbour.unlink(missing_ok=True)
            raise


def check_writable(path: str | Path) -> None:
    """Find out before the work is done that its result could not be written.

    Raises:
        OutputError: The path is a folder, or in one that is missing or not writable.
    """
    with _explain(path):
        target = Path(os.path.realpath(nameable(path)))
        if target.is_dir():
            raise OSError("it is a folder")
        if not target.parent.is_dir():
            raise OSError(f"there is no folder {target.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise OSError("permission denied")


def write_order(path: str | Path, problem: Problem, order: Order) -> None:
    """Write an order as a JSON list of node names; ``report`` reads it."""
    write_file(path, (json.dumps(problem.names(order), separators=(",", ":")) + "\n").encode())
