"""How much time overlap_sched adds to Inductor's own, per compiled graph.

    python -m scripts.studies.compile_time [--model tiny small] [--repeat 3]

One process in a fake world of two ranks compiles a training step of the Llama of ``scripts/train.py``, a few times.
The first time all kernels are compiled (``cold``), then they are found in torch's cache of kernels (``warm``); graphs
are never cached. Of the warm ones the one with the least share counts: other programs on the machine only add. Times
are those of the thread that compiles, by the clock on the wall and by its own (``CPU``).
"""

import argparse
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.compile_fx as compile_fx


import overlap_sched
from llama_repro.capture.parallelism import fake_world
from llama_repro.training.arguments import parse
from llama_repro.training.trainer import make_trainer
from llama_repro.training.world import World
from overlap_sched.inductor import kernel_graph

RANKS = 2


@dataclass
class Spent:
    """Seconds in one place; ``since`` the start of what is running."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls: int = 0

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added here."""

        def timed(*arguments: Any, **more: Any) -> Any:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **more)
            finally:
                self.wall_s += time.perf_counter() - wall_s
                self.cpu_s += time.thread_time() - cpu_s
                self.calls += 1

        return timed


@contextmanager
def watched() -> Iterator[tuple[Spent, Spent]]:
    """Time in our pass, and in Inductor with it."""
    ours, inductor = Spent(), Spent()
    with (
        mock.patch.object(kernel_graph, "order_kernels", ours.inside(kernel_graph.order_kernels)),
        mock.patch.object(compile_fx, "fx_codegen_and_compile", inductor.inside(compile_fx.fx_codegen_and_compile)),
    ):
        yield ours, inductor


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        nargs="+",
        default=["tiny", "small"],
        metavar="SIZE",
        help="sizes of scripts/train.py (default: tiny small)",
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="warm compilations (default: 3)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    with (
        fake_world(RANKS),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=cache),
    ):
        for model in given.model:
            print(f"{model:<8} graphs | wall: ours   Inductor    share | CPU: ours   Inductor    share")
            rows = [(name, *compiled(model)) for name in ("cold", *["warm"] * given.repeat)]
            best = min(rows[1:], key=lambda row: row[1].cpu_s / row[2].cpu_s, default=rows[0])
            for name, ours, inductor in (rows[0], best):
                own = Spent(inductor.wall_s - ours.wall_s, inductor.cpu_s - ours.cpu_s)
                wall = f"{ours.wall_s:8.3f} s {own.wall_s:8.2f} s {ours.wall_s / own.wall_s:8.2%}"
                cpu = f"{ours.cpu_s:7.3f} s {own.cpu_s:8.2f} s {ours.cpu_s / own.cpu_s:8.2%}"
                print(f"  {name:<6} {ours.calls:>6} | {wall} | {cpu}")


def compiled(model: str) -> tuple[Spent, Spent]:
    """One step, compiled again."""
    torch._dynamo.reset()
    trainer = make_trainer(parse(["--model", model]), World(0, RANKS, torch.device("cpu"), "gloo"))
    with watched() as spent, overlap_sched.enabled():
        trainer.step(0)
    return spent


if __name__ == "__main__":
    main()
