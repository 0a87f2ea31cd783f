"""How the plug-ins speak: one line where logging shows it, warnings that never raise, nothing twice.

A line on what became of a job's graphs is INFO, or WARNING where something is to be mended. Python shows INFO only to
those who have set up logging, so where nobody has, the line goes to standard error by a handler of our own, used once
and never attached. Whoever has set up logging decides: a level on the logger ``overlap_sched`` or on the root logger,
``logging.disable``, ``TORCH_LOGS="-overlap_sched"``.
"""

import logging
import os
import warnings

import torch.distributed as dist

from overlap_sched.errors import OverlapSchedWarning

log = logging.getLogger("overlap_sched")

_warned: set[str] = set()


def say(message: str, level: int = logging.INFO) -> None:
    """Log a line; where nobody has set up logging, show it on standard error. Never raises."""
    try:
        if log.hasHandlers():
            log.log(level, "%s", message)
            return
        manager = log.manager
        asked = log.level != logging.NOTSET or manager.root.level != logging.WARNING  # which is where it starts
        if level <= manager.disable or (asked and not log.isEnabledFor(level)):
            return
        record = log.makeRecord(log.name, level, __file__, 0, "%s", (message,), None)
        logging.StreamHandler().handle(record)
    except Exception:  # standard error is closed, or a handler of the user's fails: a job is running
        return


def said(error: Exception | None) -> str:
    """Return what an error says, after its type."""
    return f"{type(error).__name__}: {error}"


def warn(message: str, error: Exception | None = None, subject: str = "") -> None:
    """Warn, the same sentence once, and never raise: where warnings are errors it is logged, since a job is running.

    Args:
        message: The sentence.
        error: What is added to it after a colon; ``None``: nothing.
        subject: Of the sentences on one subject only the first is shown; ``""``: each is a subject of its own.
    """
    message = message if error is None else f"{message}: {said(error)}"
    if (subject or message) in _warned:
        return
    _warned.add(subject or message)
    try:
        warnings.warn(message, OverlapSchedWarning, stacklevel=3)
    except OverlapSchedWarning:
        log.warning("%s", message)


def say_once(message: str, level: int = logging.INFO) -> None:
    """As :func:`say`, the same sentence once."""
    if message not in _warned:
        _warned.add(message)
        say(message, level)


def forget_warnings() -> None:
    """Every sentence may be said again."""
    _warned.clear()


def rank() -> int:
    """This process's rank; before anything is distributed, the one that ``torchrun`` gave it; 0 without either."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0


def several_ranks() -> bool:
    """Tell whether more than one rank compiles (with torch's ``fake`` process group one process stands for all)."""
    up = dist.is_available() and dist.is_initialized()
    return up and dist.get_world_size() > 1 and dist.get_backend() != "fake"
