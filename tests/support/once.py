"""What takes long is done once in a test run, not once in each of its processes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support.ranks import run_ranks


def filled_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """The folder of that name, filled by the first process of pytest-xdist that asks for it; all others wait and read.

    Raises:
        Exception: What ``fill`` raises. Whoever asks next starts it again.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            folder.mkdir(exist_ok=True)
            fill(folder)
            done.touch()
    return folder


def found_once(
    factory: pytest.TempPathFactory, name: str, module: str, *arguments: object, ranks: int = 2, **how: Any
) -> list[Any]:
    """What each rank of a program has saved (:func:`tests.support.ranks.save_found`); it runs once."""
    import torch

    def run(folder: Path) -> None:
        run_ranks(module, folder, *arguments, ranks=ranks, **how)

    folder = filled_once(factory, name, run)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]
