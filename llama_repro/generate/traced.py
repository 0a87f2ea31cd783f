"""The few layers that a generated graph repeats: traced now, or read from the cache."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import overlap_sched.fx
from llama_repro.capture.cache import cache_dir, cache_key, make_folder
from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.trace import captured
from llama_repro.generate.graph import Traced
from overlap_sched.errors import OverlapSchedError
from overlap_sched.problem.file import read_problem, write_problem

_PARTS = ("forward", "backward")


def traced_graphs(config: LlamaConfig, progress: Callable[[str], None] = lambda text: None) -> Traced:
    """Forward and backward graph of a configuration in the ``runtime`` memory model."""
    folder, key = cache_dir() / "llama_repro", cache_key(config)
    paths = [folder / f"{key}-{part}.json.gz" for part in _PARTS]
    try:
        return read_problem(paths[0]), read_problem(paths[1])
    except OverlapSchedError:
        progress(f"tracing {config.layers} layers of {config.name} on {config.world} fake ranks")
    make_folder(folder, "set XDG_CACHE_HOME to a folder that can be written")
    with tempfile.TemporaryDirectory(dir=folder) as scratch, captured(config) as graphs:
        for part, path in zip(_PARTS, paths, strict=True):
            problem = overlap_sched.fx.lift(getattr(graphs, part), name=f"{config.name}_{part}").problem
            write_problem(problem, Path(scratch) / path.name)
            (Path(scratch) / path.name).replace(path)  # whole files only, whoever else is at it
    return read_problem(paths[0]), read_problem(paths[1])
