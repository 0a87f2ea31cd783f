"""Captured graphs as problem files, kept between runs.

In ``$XDG_CACHE_HOME/overlap_sched`` where that is set, else in ``.cache`` beside the package (the root of a
checkout), else in ``~/.cache/overlap_sched``. A file's name holds a hash of the configuration, the versions of torch
and Python, and the source of all that has a say in what is captured, so that stale files are never read. They may be
deleted at any time.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import overlap_sched.cost
import overlap_sched.fx
from llama_repro.capture.configs import LlamaConfig
from overlap_sched.errors import OutputError, OverlapSchedError
from overlap_sched.problem import MemoryModel, Problem
from overlap_sched.problem.file import read_problem, write_problem

MODELS: tuple[MemoryModel, MemoryModel] = ("tracker", "runtime")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Stored:
    """A backward graph as problems: the same nodes and ids in each.

    Attributes:
        problems: By memory model.
        capture_s: Seconds that tracing and partitioning took. lift_s: that lifting it into one problem took. Both are 0
            for a graph that was neither captured nor lifted.
    """

    problems: Mapping[MemoryModel, Problem]
    capture_s: float = 0.0
    lift_s: float = 0.0


def cache_dir() -> Path:
    """Where problem files are kept; see the module."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "overlap_sched"
    if (_HERE.parents[1] / "setup.cfg").exists():
        return _HERE.parents[1] / ".cache"
    return Path.home() / ".cache" / "overlap_sched"


def cache_key(config: LlamaConfig) -> str:
    """Names the configuration and all that decides what comes out of capturing it."""
    digest = hashlib.sha256(f"{config!r} torch {torch.__version__} python {sys.version_info[:2]}".encode())
    for path in _sources([str(_HERE), *overlap_sched.fx.__path__, *overlap_sched.cost.__path__]):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{config.name}-{digest.hexdigest()[:16]}"


def _sources(folders: Iterable[str]) -> list[Path]:
    return sorted(path for folder in folders for path in Path(folder).glob("*.py"))


def stored_problems(
    config: LlamaConfig, *, refresh: bool = False, progress: Callable[[str], None] = lambda text: None
) -> Stored:
    """The configuration's backward graph, from the cache or captured now and put there.

    Args:
        config: What to capture.
        refresh: Capture even if it is in the cache.
        progress: Told what is being done.
    """
    folder, key = cache_dir() / "llama_repro", cache_key(config)
    if not refresh:
        try:
            return _read(folder, key)
        except (OSError, ValueError, KeyError, OverlapSchedError):
            pass  # not there, or damaged: capture anew
    progress(f"capturing {config.name}: tracing forward and backward on {config.world} fake ranks")
    _write(folder, key, config, progress)
    return _read(folder, key)  # read back even now: a first run and a later one work on the same numbers


def make_folder(folder: Path, repair: str) -> None:
    """Make sure that a folder is there.

    Raises:
        OutputError: It cannot be made; ``repair`` is the way out.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: the folder cannot be made ({error.strerror}); {repair}.") from None


def _read(folder: Path, key: str) -> Stored:
    times = json.loads((folder / f"{key}.json").read_text())
    problems = {model: read_problem(folder / f"{key}-{model}.json.gz") for model in MODELS}
    return Stored(problems, times["capture_s"], times["lift_s"])


def _write(folder: Path, key: str, config: LlamaConfig, progress: Callable[[str], None]) -> None:
    from llama_repro.capture.trace import captured

    make_folder(folder, "set XDG_CACHE_HOME to a folder that can be written")
    with tempfile.TemporaryDirectory(dir=folder) as scratch, captured(config) as graphs:
        lift_s = 0.0
        for model in MODELS:
            progress(f"lifting {config.name} into a problem ({model} memory model)")
            started = time.perf_counter()
            lifted = overlap_sched.fx.lift(graphs.backward, memory_model=model, name=f"{config.name}_bwd")
            lift_s = time.perf_counter() - started
            write_problem(lifted.problem, Path(scratch) / f"{key}-{model}.json.gz")
        times = {"capture_s": graphs.seconds, "lift_s": lift_s}
        (Path(scratch) / f"{key}.json").write_text(json.dumps(times))
        for path in sorted(Path(scratch).iterdir()):
            path.replace(folder / path.name)  # whole files only, whoever else is at it
