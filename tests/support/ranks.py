"""Start a program on several ranks, as torchrun does, and wait for it: a hang is an error, not a wait."""

import os
import socket
import subprocess
import sys
from pathlib import Path

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
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **where, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=limit_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(said)
    return "\n".join(said)
