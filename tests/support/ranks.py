"""Start a program on several ranks, as torchrun does, and wait for it: a hang is an error, not a wait.

To import torch's compiler takes seconds of a processor. So ranks are forked from a server that has imported it; where
it matters that each has hashes and an interpreter of its own, ask for fresh ones.

``python -m tests.support.ranks MODULE arguments`` is a fresh one.
"""

import multiprocessing
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from filelock import FileLock

if TYPE_CHECKING:
    import pytest

# What takes long is done once in a test run, not once in each of its processes.


def filled_once(factory: "pytest.TempPathFactory", name: str, fill: Callable[[Path], object]) -> Path:
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
    factory: "pytest.TempPathFactory", name: str, module: str, *arguments: object, ranks: int = 2, **how: Any
) -> list[Any]:
    """What each rank of a program has saved (:func:`tests.support.ranks.save_found`); it runs once."""
    import torch

    def run(folder: Path) -> None:
        run_ranks(module, folder, *arguments, ranks=ranks, **how)

    folder = filled_once(factory, name, run)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]


ROOT = Path(__file__).resolve().parents[2]
PORTS = range(15_000, 30_000)
"""Below those that the system gives to connections (from 32,768 on, on Linux): none of these takes one meanwhile."""
GRACE_S = 10.0
"""Once a rank has failed, the others have so long (seconds) to say what they say of it."""
IMPORTED = [
    "torch",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._dynamo.backends.inductor",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "overlap_sched.inductor",
    "overlap_sched.distributed",
]
"""By the server. None of these starts a thread, or reads the environment that a rank has of its own."""
THREADS, POOL = "OMP_NUM_THREADS", "TORCH_WARM_POOL"
"""Read when torch is imported, by the server already. Inductor's pool, where there is Triton, would start threads."""


def _fresh(module: str, arguments: Sequence[str], output: IO[str], environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "tests.support.ranks", module, *arguments]
    whole = {**os.environ, **environment}
    return subprocess.Popen(command, cwd=ROOT, env=whole, stdout=output, stderr=subprocess.STDOUT)


def _forked(module: str, arguments: Sequence[str], output: IO[str], environment: dict[str, str]) -> Any:
    """A process, as :class:`subprocess.Popen` has it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, {THREADS: environment[THREADS], POOL: "0"}):
        forkserver.ensure_running()
    given = (module, arguments, output.name, {**os.environ, **environment})
    process: Any = context.Process(target=forked, args=given, daemon=True)
    process.start()
    process.poll, process.wait = lambda: process.exitcode, process.join
    return process


def run_ranks(
    module: str, *arguments: object, ranks: int, limit_s: float = 240, fresh: bool = False, **environment: str
) -> str:
    """Run ``python -m module arguments`` on each rank; what they said, one after the other.

    Raises:
        AssertionError: A rank ended with an error, or not all have ended within the limit (seconds); all are killed.
    """
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), THREADS: "1"}
    with ExitStack() as running:
        processes, outputs = [], []
        for rank in range(ranks):
            own = {**where, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            # into files: a rank that says much would stand still at a full pipe, and all others with it
            outputs.append(running.enter_context(tempfile.NamedTemporaryFile("w+")))
            start = _fresh if fresh else _forked
            processes.append(start(module, list(map(str, arguments)), outputs[-1], own))
            running.callback(processes[-1].wait)
            running.callback(processes[-1].kill)
        _wait(processes, limit_s)
        codes = [process.poll() for process in processes]
        for process in processes:
            process.kill()
            process.wait()
        said = "\n".join(map(_read, outputs))
    late = [rank for rank, code in enumerate(codes) if code is None]
    assert not late, f"ranks {late} have not ended within {limit_s:g} s, or after another had failed:\n{said}"
    assert not any(codes), said
    return said


def _wait(processes: Sequence[Any], limit_s: float) -> None:
    """For all to end; not much longer where one has failed."""
    ends_s, failed = time.monotonic() + limit_s, False
    while None in (codes := [process.poll() for process in processes]) and time.monotonic() < ends_s:
        if not failed and any(codes):
            ends_s, failed = min(ends_s, time.monotonic() + GRACE_S), True
        time.sleep(0.05)


def free_port() -> int:
    """A port at which nobody listens."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are taken")


def _read(output: IO[str]) -> str:
    output.seek(0)
    return output.read()


def forked(module: str, arguments: Sequence[str], output: str, environment: dict[str, str]) -> None:
    """A rank that was forked: with an output, an environment and a folder of its own."""
    with open(output, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    main(module, *arguments)


def main(module: str, *arguments: str) -> None:
    """Run a module as a program, and end without tearing down the interpreter once it has done its work.

    Once a graph was traced, torch keeps its group, and with it gloo's threads, until the process ends
    (``destroy_process_group`` does not join them). A thread that wants the interpreter while it is torn down may abort
    the process: seen once, as "terminate called without an active exception", when all work was done.
    """
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def save_found(found: Callable[[], Any]) -> None:
    """Be a rank over gloo: what is found there comes into ``FOLDER/rank<r>.pt``, where the program is given FOLDER."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.save(found(), Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
