"""Training as it is used: gloo ranks under torchrun, compiled, on a slow network; at night by each way of sharding.

Models are of one layer, half as much to compile.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from llama_repro.training.arguments import parse
from llama_repro.training.sizes import SIZES
from llama_repro.training.trainer import make_trainer
from llama_repro.training.world import world_of
from tests.support.one_layer import ONE_LAYER
from tests.support.ranks import run_ranks

ROOT = Path(__file__).parents[2]
STEPS = 5
NEAR_BYTES = 2**18
"""How far measured memory may be from the prediction: Inductor lets dead buffers lie for later ones of their size."""
SCHEDULED = ("--scheduler", "overlap_sched", "--measure", "--strict", "--headroom", "1MiB", "--costs", "h100")
SLOW = ("--slow-network", "0.05")
DATA = ("--data", str(ROOT / "CONTRIBUTING.md"))
SCRIPT, SHORT = (str(ROOT / "scripts/train.py"),), ("-m", "tests.support.one_layer")
pytestmark = pytest.mark.slow


def common(sharding: str, dtype: str, accumulate: int) -> tuple[str, ...]:
    """What is asked of every run."""
    steps = ("--device", "cpu", "--steps", str(STEPS), "--accumulate", str(accumulate))
    return (*steps, "--sharding", sharding, "--dtype", dtype)


def torchrun(program: tuple[str, ...], *arguments: str) -> str:
    """What two ranks said."""
    done = ended(program, *arguments, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def ended(program: tuple[str, ...], *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Two ranks under torchrun, to their end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "LOCAL"))}
    own |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    return subprocess.run([*command, *arguments], env=own, capture_output=True, text=True, timeout=timeout)


class Runs(NamedTuple):
    """What ranks wrote of two runs that differ in who orders their graphs."""

    none: dict[str, Any]
    ours: dict[str, Any]


def unsharded_losses(monkeypatch: pytest.MonkeyPatch, *given: str) -> list[float]:
    """The same steps on one rank, nothing compiled: all ranks' batches accumulated."""
    monkeypatch.setitem(SIZES, "tiny", ONE_LAYER)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    with world_of("cpu") as world:
        trainer = make_trainer(parse(["--device", "cpu", *given]), world)
        return [trainer.step(number) for number in range(STEPS)]


def test_training_by_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, in bfloat16; ours goes on, under torchrun, where the first run was after three steps."""
    none, ours, checkpoint = tmp_path / "none.json", tmp_path / "ours.json", tmp_path / "checkpoint"
    keep = (*common("fsdp", "bf16", 2), "--checkpoint", str(checkpoint), "--checkpoint-every", "3")
    run_ranks("tests.support.one_layer", *keep, "--scheduler", "none", "--json", none, ranks=2, limit_s=600)
    shutil.rmtree(checkpoint / f"step-{STEPS:08}")
    said = torchrun(SHORT, *keep, *SCHEDULED, *SLOW, "--json", str(ours))
    assert "train: resumed after step 3" in said
    runs = check_results(none, ours, ranks=2, first=3)
    check_orders(runs, accumulate=2, collectives=(12, 23))
    check_losses(runs, 2e-3, unsharded_losses(monkeypatch, "--dtype", "bf16", "--accumulate", "4"))


@pytest.mark.nightly
def test_training_in_two_dimensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks, with tensor parallelism."""
    none, ours = tmp_path / "none.json", tmp_path / "ours.json"
    train = partial(run_ranks, "tests.support.one_layer", *common("2d", "fp32", 1), *DATA, ranks=4, limit_s=600)
    train("--scheduler", "none", "--json", none)
    assert "resumed" not in train(*SCHEDULED, *SLOW, "--json", ours)
    runs = check_results(none, ours, ranks=4, first=0)
    check_orders(runs, accumulate=1, collectives=(16, 27))
    check_losses(runs, 1e-5, unsharded_losses(monkeypatch, "--dtype", "fp32", "--accumulate", "2", *DATA))


def check_results(none: Path, ours: Path, ranks: int, first: int) -> Runs:
    """The order changes nothing on any rank, nor does a resume, and as much is fused as without us."""
    runs = Runs(json.loads(none.read_text()), json.loads(ours.read_text()))
    assert len(runs.none["losses"]) == STEPS
    assert runs.ours["losses"] == runs.none["losses"][first:]
    assert runs.ours["weights"] == runs.none["weights"]
    assert len(set(runs.ours["weights"])) == ranks
    assert runs.ours["kernels"] == runs.none["kernels"]
    return runs


def check_orders(runs: Runs, accumulate: int, collectives: tuple[int, int]) -> None:
    """Every graph was scheduled, and what ran is what was planned: each launch, wait and matmul in its place."""
    graphs, measured = runs.ours["graphs"], runs.ours["measured"]["graphs"]
    assert [graph["name"].split()[0] for graph in graphs] == ["forward", "backward"]
    assert all(graph["changed"] for graph in graphs), graphs
    assert [graph["kind"] for graph in measured] == ["forward", "backward"] * accumulate
    assert tuple(graph["collectives"] for graph in measured[:2]) == collectives
    for planned, ran in zip(graphs * accumulate, measured, strict=True):
        assert ran["program"] == planned["used"]["program"]
        assert ran["matmuls_in_between"] > planned["original"]["matmuls_in_between"]
        assert abs(ran["growth_bytes"] - planned["used"]["growth_bytes"]) < NEAR_BYTES
    link_us = accumulate * sum(graph["used"]["link_us"] for graph in graphs)
    assert runs.ours["network_us"][0] == pytest.approx(link_us)  # as slow as the scheduler took it to be


def check_losses(runs: Runs, tolerance: float, reference: list[float]) -> None:
    """Those of the same model on one rank, which takes the batches of all as micro batches."""
    assert [float.fromhex(loss) for loss in runs.none["losses"]] == pytest.approx(reference, rel=tolerance)


def test_a_mistake_is_told_once_and_ends_all_ranks():
    done = ended(SCRIPT, "--sharding", "2d", "--tp", "4", timeout=60)
    assert done.returncode != 0
    told = "train: a world of 2 ranks cannot be divided into tensor-parallel groups of 4 (--tp)."
    assert told in done.stderr
