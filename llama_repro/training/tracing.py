"""Record steps with the torch profiler: a trace of each rank and the graphs that ran, for ``--profile``."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._inductor import config as inductor_config
from torch.profiler import ProfilerActivity, profile, schedule

from llama_repro.training.world import World

STEPS = 3
_GRAPH = "fx_graph_runnable.py"


@contextmanager
def traceable(folder: Path | None, world: World) -> Iterator[None]:
    """What is compiled inside can be recorded: its kernels are seen on a CPU, too, and rank 0 keeps its graphs.

    Args:
        folder: Where rank 0 writes ``graph-0.py`` and so on, in the order of compilation; ``None``: nothing is changed.
        world: This rank.
    """
    if folder is None:
        yield
        return
    with tempfile.TemporaryDirectory() as scratch:
        debug = {"trace.enabled": world.rank == 0, "trace.debug_dir": scratch}
        with inductor_config.patch({"cpp.enable_kernel_profile": world.device.type == "cpu", **debug}):
            yield
        graphs = sorted(Path(scratch).rglob(_GRAPH), key=lambda path: path.stat().st_mtime_ns)
        folder.mkdir(parents=True, exist_ok=True)
        for k, graph in enumerate(graphs):
            shutil.copyfile(graph, folder / f"graph-{k}.py")


def record(step: Callable[[int], object], first: int, folder: Path, world: World) -> None:
    """Run some steps from number ``first`` on, and write ``rank0.json.gz`` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if world.device.type == "cuda" else [])]
    with profile(
        activities=activities, record_shapes=True, schedule=schedule(wait=0, warmup=1, active=STEPS)
    ) as profiler:
        for number in range(1 + STEPS):
            step(first + number)
            if number < STEPS:  # behind the last the profiler is stopped by leaving, so that it can be exported
                profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{world.rank}.json.gz"))
