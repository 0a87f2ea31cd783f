"""``scripts/train.py`` as it is used: two or four gloo ranks under torchrun, compiled, each way of sharding."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_repro.training.arguments import parse
from llama_repro.training.trainer import make_trainer
from llama_repro.training.world import world_of
from tests.support.ranks import run_ranks

ROOT = Path(__file__).parents[2]
STEPS = 5
NEAR_BYTES = 2**18
"""How far measured memory may be from the prediction: Inductor lets dead buffers lie for later ones of their size."""
pytestmark = pytest.mark.slow


def torchrun(script: Path, *arguments: str, ranks: int = 2, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "LOCAL"))}
    path = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), str(ROOT)) if part)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, str(script), *arguments],
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def trained(ranks: int, out: Path, *arguments: str, by_torchrun: bool = False) -> tuple[dict[str, Any], str]:
    """What the ranks wrote, and what they said."""
    arguments = (*arguments, "--json", str(out))
    if by_torchrun:
        done = torchrun(ROOT / "scripts/train.py", *arguments, ranks=ranks)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        said = done.stdout
    else:
        said = run_ranks("scripts.train", *arguments, ranks=ranks, limit_s=600)
    return json.loads(out.read_text()), said


def unsharded_losses(monkeypatch: pytest.MonkeyPatch, *given: str) -> list[float]:
    """The same steps on one rank, nothing compiled: all ranks' batches accumulated."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    with world_of("cpu") as world:
        trainer = make_trainer(parse(["--device", "cpu", *given]), world)
        return [trainer.step(number) for number in range(STEPS)]


@pytest.mark.parametrize(
    ("ranks", "sharding", "dtype", "accumulate", "collectives", "tolerance"),
    [
        (2, "fsdp", "bf16", 2, (21, 41), 2e-3),
        (4, "2d", "fp32", 1, (29, 49), 1e-5),
    ],
)
def test_training(ranks, sharding, dtype, accumulate, collectives, tolerance, tmp_path, monkeypatch):
    data = ("--data", str(ROOT / "CONTRIBUTING.md")) if ranks == 4 else ()
    common = ("--device", "cpu", "--steps", str(STEPS), "--dtype", dtype, "--accumulate", str(accumulate))
    common = (*common, "--sharding", sharding, *data)
    saved = tmp_path / "checkpoint"
    keep = ("--checkpoint", str(saved), "--checkpoint-every", "3") if accumulate > 1 else ()
    train = partial(trained, ranks, by_torchrun=bool(keep))
    none, _ = train(tmp_path / "none.json", *common, "--scheduler", "none", *keep)
    first = 0
    if keep:  # ours goes on where the first run was after three steps
        shutil.rmtree(saved / f"step-{STEPS:08}")
        first = 3
    scheduled = ("--scheduler", "overlap_sched", "--measure", "--strict", "--headroom", "1MiB", "--costs", "h100")
    ours, said = train(tmp_path / "ours.json", *common, *scheduled, "--slow-network", "0.05", *keep)

    # the order changes nothing on any rank, nor does a resume
    assert ("train: resumed after step 3" in said) == bool(keep)
    assert len(none["losses"]) == STEPS
    assert ours["losses"] == none["losses"][first:]
    assert ours["weights"] == none["weights"]
    assert len(set(ours["weights"])) == ranks

    # every graph was scheduled, and what ran is what was planned: each launch, wait and matmul in its place
    assert [graph["name"].split()[0] for graph in ours["graphs"]] == ["forward", "backward"]
    assert all(graph["changed"] for graph in ours["graphs"]), ours["graphs"]
    measured = ours["measured"]["graphs"]
    assert [graph["kind"] for graph in measured] == ["forward", "backward"] * accumulate
    assert tuple(graph["collectives"] for graph in measured[:2]) == collectives
    for planned, ran in zip(ours["graphs"] * accumulate, measured, strict=True):
        assert ran["program"] == planned["used"]["program"]
        assert ran["matmuls_in_between"] > planned["original"]["matmuls_in_between"]
        assert abs(ran["growth_bytes"] - planned["used"]["growth_bytes"]) < NEAR_BYTES
    assert ours["kernels"] == none["kernels"]  # as much is fused as without us

    # the network was as slow as the scheduler took it to be
    link_us = accumulate * sum(graph["used"]["link_us"] for graph in ours["graphs"])
    assert ours["network_us"][0] == pytest.approx(link_us)

    # the same model on one rank, which takes the batches of all as micro batches
    micro = accumulate * (2 if sharding == "2d" else ranks)
    reference = unsharded_losses(monkeypatch, "--dtype", dtype, "--accumulate", str(micro), *data)
    assert [float.fromhex(loss) for loss in none["losses"]] == pytest.approx(reference, rel=tolerance)


def test_a_mistake_is_told_once_and_ends_all_ranks():
    done = torchrun(ROOT / "scripts/train.py", "--sharding", "2d", "--tp", "4", ranks=2, timeout=60)
    assert done.returncode != 0
    told = "train: a world of 2 ranks cannot be divided into tensor-parallel groups of 4 (--tp)."
    assert told in done.stderr
