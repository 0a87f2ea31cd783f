"""``overlap-sched --version``: what is installed, without importing it."""

import platform
from importlib.metadata import PackageNotFoundError, version


def version_text() -> str:
    """``overlap-sched 0.1.0 (Python 3.11.9, torch 2.13.0)``."""
    torch = _installed("torch")
    return (
        f"overlap-sched {_installed('overlap_sched') or 'not installed'} "
        f"(Python {platform.python_version()}, {f'torch {torch}' if torch else 'without torch'})"
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
