"""Start a program on several ranks, as torchrun does, and wait for it: a hang is an error, not a wait."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(module: str, *arguments: object, ranks: int, limit_s: float = 240, **environment: str) -> str:
    """Run ``python -m module arguments`` on each rank; what they said, one after the other.

    Raises:
        AssertionError: A rank ended with an error.
        subprocess.TimeoutExpired: Not all have ended within the limit (seconds); all are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    # into files: a rank that says much would stand still at a full pipe, and all others with it
    with ExitStack() as opened:
        outputs = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        return _run(module, arguments, outputs, limit_s, {**where, **environment})


def _run(
    module: str, arguments: Sequence[object], outputs: Sequence[IO[str]], limit_s: float, environment: dict[str, str]
) -> str:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        for process in processes:
            process.wait(limit_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        said = [_read(output) for output in outputs]
    assert not any(process.returncode for process in processes), "\n".join(said)
    return "\n".join(said)


def _read(output: IO[str]) -> str:
    output.seek(0)
    return output.read()
