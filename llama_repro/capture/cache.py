"""Captured graphs as problem files, kept between runs.

In ``$XDG_CACHE_HOME/overlap_sched`` where that is set, else in ``.cache`` in the repository. A file's name holds a hash
of the configuration, the versions of torch and Python, and the source of all that decides what is captured, so that
stale files are never read. They may be deleted at any time.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import overlap_sched.cost
import overlap_sched.fx
from llama_repro import CLUSTER, ROOT
from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.trace import captured
from overlap_sched.cost.cluster import cluster_text, read_cluster
from overlap_sched.errors import OutputError, OverlapSchedError
from overlap_sched.problem import MemoryModel, Problem
from overlap_sched.problem.file import read_problem, write_problem

MODELS: tuple[MemoryModel, MemoryModel] = ("tracker", "runtime")


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
    return ROOT / ".cache"


def cache_key(config: LlamaConfig) -> str:
    """Names the configuration and all that decides what comes out of capturing it."""
    digest = hashlib.sha256(f"{config!r} torch {torch.__version__} python {sys.version_info[:2]}".encode())
    for path in _sources([str(Path(__file__).parent), *overlap_sched.fx.__path__, *overlap_sched.cost.__path__]):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(cluster_text(read_cluster(CLUSTER)).encode())
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
        progress: Called with what is being done.
    """
    folder, key = cache_dir() / "llama_repro", cache_key(config)
    paths = [folder / f"{key}-{model}.json.gz" for model in MODELS]
    seconds = folder / f"{key}.json"

    def read() -> Stored:
        times = json.loads(seconds.read_text())
        return Stored(dict(zip(MODELS, map(read_problem, paths), strict=True)), times["capture_s"], times["lift_s"])

    if not refresh:
        try:
            return read()
        except (OSError, ValueError, KeyError, OverlapSchedError):
            pass  # not there, or damaged: capture again
    progress(f"capturing {config.name}: tracing forward and backward on {config.world} fake ranks")
    with _scratch(folder) as scratch, captured(config) as graphs:
        lift_s = 0.0
        for model, path in zip(MODELS, paths, strict=True):
            progress(f"lifting {config.name} into a problem ({model} memory model)")
            started = time.perf_counter()
            lifted = overlap_sched.fx.lift(graphs.backward, memory_model=model, name=f"{config.name}_bwd")
            lift_s = time.perf_counter() - started
            write_problem(lifted.problem, scratch / path.name)
        (scratch / seconds.name).write_text(json.dumps({"capture_s": graphs.seconds, "lift_s": lift_s}))
    return read()  # from the files even now: a first run and a later one work on the same numbers


def traced_graphs(config: LlamaConfig, progress: Callable[[str], None] = lambda text: None) -> tuple[Problem, Problem]:
    """Forward and backward graph of a configuration in the ``runtime`` memory model, from the cache or traced now."""
    folder, key = cache_dir() / "llama_repro", cache_key(config)
    paths = {part: folder / f"{key}-{part}.json.gz" for part in ("forward", "backward")}
    try:
        return read_problem(paths["forward"]), read_problem(paths["backward"])
    except OverlapSchedError:
        progress(f"tracing {config.layers} layers of {config.name} on {config.world} fake ranks")
    with _scratch(folder) as scratch, captured(config) as graphs:
        for part, path in paths.items():
            lifted = overlap_sched.fx.lift(getattr(graphs, part), name=f"{config.name}_{part}")
            write_problem(lifted.problem, scratch / path.name)
    return read_problem(paths["forward"]), read_problem(paths["backward"])


def fused_problem(config: LlamaConfig, progress: Callable[[str], None] = lambda text: None) -> Problem:
    """The backward graph priced for :data:`llama_repro.CLUSTER` with Inductor's predicted kernels; ``runtime`` model.

    From the cache or captured now. The nodes and ids are those of :func:`stored_problems`.
    """
    folder = cache_dir() / "llama_repro"
    path = folder / f"{cache_key(config)}-fused.json.gz"
    try:
        return read_problem(path)
    except OverlapSchedError:
        progress(f"capturing {config.name} for {CLUSTER}: tracing on {config.world} fake ranks")
    with _scratch(folder) as scratch, captured(config) as graphs:
        name = f"{config.name}_bwd"
        lifted = overlap_sched.fx.lift(graphs.backward, name=name, cluster=CLUSTER, fusion="inductor")
        write_problem(lifted.problem, scratch / path.name)
    return read_problem(path)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder whose files go to ``folder`` at the end: whole ones only, whoever else is at it."""
    make_folder(folder, "set XDG_CACHE_HOME to a folder that can be written")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        yield Path(scratch)
        for path in sorted(Path(scratch).iterdir()):
            path.replace(folder / path.name)


def make_folder(folder: Path, repair: str) -> None:
    """Make sure that a folder is there.

    Raises:
        OutputError: It cannot be made; ``repair`` is the way out.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: the folder cannot be made ({error.strerror}); {repair}.") from None
