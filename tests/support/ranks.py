"""Start a program on several ranks, as torchrun does, and wait for it: a hang is an error, not a wait.

``python -m tests.support.ranks MODULE arguments`` is one of them.
"""

import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
PORTS = range(15_000, 30_000)
"""Below those that the system gives to connections (from 32,768 on, on Linux): none of these takes one meanwhile."""
GRACE_S = 10.0
"""Once a rank has failed, the others have so long (seconds) to say what they say of it."""


def run_ranks(module: str, *arguments: object, ranks: int, limit_s: float = 240, **environment: str) -> str:
    """Run ``python -m module arguments`` on each rank; what they said, one after the other.

    Raises:
        AssertionError: A rank ended with an error, or not all have ended within the limit (seconds); all are killed.
    """
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    # into files: a rank that says much would stand still at a full pipe, and all others with it
    with ExitStack() as opened:
        outputs = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        return _run(module, arguments, outputs, limit_s, {**where, **environment})


def _run(
    module: str, arguments: Sequence[object], outputs: Sequence[IO[str]], limit_s: float, environment: dict[str, str]
) -> str:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks", module, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        _wait(processes, limit_s)
        late = [rank for rank, process in enumerate(processes) if process.poll() is None]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "\n".join(map(_read, outputs))
    assert not late, f"ranks {late} have not ended within {limit_s:g} s, or after another had failed:\n{said}"
    assert not any(process.returncode for process in processes), said
    return said


def _wait(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
