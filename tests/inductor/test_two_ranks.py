"""Two gloo ranks compile and run: the same results, the same order, or the original order on both."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inductor.generated import events, matmuls_under, numbered

RANKS = 2
LIMIT_S = 240
"""A hang is an error, not a wait."""

pytestmark = pytest.mark.slow


def run(case: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).resolve().parents[2]
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.inductor.two_ranks", case, str(folder)]
    processes = [
        subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("alike", tmp_path_factory.mktemp("alike"))


def test_results_are_bitwise_those_without_us(alike: list[dict[str, Any]]) -> None:
    for rank in alike:
        assert rank["ours"]["changed"] == [True, True]
        assert rank["backend"]["changed"] == [True, True]
        assert all(map(torch.equal, rank["plain"]["results"], rank["ours"]["results"]))
        assert all(map(torch.equal, rank["eager"]["results"], rank["backend"]["results"]))


def test_both_ranks_run_one_order(alike: list[dict[str, Any]]) -> None:
    for graph in (0, 1):
        orders = [numbered(events(rank["ours"]["code"][graph])) for rank in alike]
        assert orders[0] == orders[1]
        assert orders[0] != numbered(events(alike[0]["plain"]["code"][graph]))


def test_matmuls_run_while_gradients_are_on_their_way(alike: list[dict[str, Any]]) -> None:
    assert sum(matmuls_under(events(alike[0]["plain"]["code"][1]))) == 0
    assert sum(matmuls_under(events(alike[0]["ours"]["code"][1]))) >= 6


@pytest.mark.parametrize(
    ("case", "part"), [("options differ", "options"), ("a rank fails", "order"), ("a rank cannot lift", "problem")]
)
def test_ranks_that_differ_keep_the_original_order(case: str, part: str, tmp_path: Path) -> None:
    for rank in run(case, tmp_path):
        assert rank["ours"]["changed"] == [False, False]
        assert all(map(torch.equal, rank["plain"]["results"], rank["ours"]["results"]))
        assert any(f"the ranks differ in {part}" in message for message in rank["ours"]["warned"])
        for graph in (0, 1):
            assert events(rank["ours"]["code"][graph]) == events(rank["plain"]["code"][graph])
