"""``scripts/train.py`` as it is used: two gloo ranks under torchrun, compiled, each way of sharding."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_repro.training.arguments import parse
from llama_repro.training.trainer import make_trainer
from llama_repro.training.world import world_of

ROOT = Path(__file__).parents[2]
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


def trained(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """What two ranks wrote, and what they said."""
    done = torchrun(ROOT / "scripts/train.py", *arguments, "--json", str(out))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(out.read_text()), done.stdout


def unsharded_losses(monkeypatch: pytest.MonkeyPatch, *given: str) -> list[float]:
    """The same five steps on one rank, nothing compiled: two ranks' batches accumulated."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    with world_of("cpu") as world:
        trainer = make_trainer(parse(["--device", "cpu", *given]), world)
        return [trainer.step(number) for number in range(5)]


@pytest.mark.parametrize(
    ("sharding", "dtype", "accumulate", "collectives", "tolerance"),
    [("raw", "fp32", 2, (21, 41), 1e-5), ("dtensor", "bf16", 1, (21, 41), 2e-3), ("2d", "bf16", 1, None, 2e-3)],
)
def test_training(sharding, dtype, accumulate, collectives, tolerance, tmp_path, monkeypatch):
    common = ("--device", "cpu", "--steps", "5", "--dtype", dtype, "--accumulate", str(accumulate))
    common = (*common, "--sharding", sharding)
    saved = tmp_path / "checkpoint"
    none, _ = trained(tmp_path / "none.json", *common, "--scheduler", "none")
    keep = ("--checkpoint", str(saved), "--checkpoint-every", "3")
    scheduled = ("--scheduler", "overlap_sched", "--measure", "--strict", "--headroom", "1MiB", "--costs", "h100")
    ours, _ = trained(tmp_path / "ours.json", *common, *scheduled, *keep)

    # the order changes nothing, neither on rank 0 nor on rank 1
    assert len(none["losses"]) == 5
    assert ours["losses"] == none["losses"]
    assert ours["weights"] == none["weights"]
    assert len(set(ours["weights"])) == 2

    if sharding == "raw":  # resumed after three steps
        shutil.rmtree(saved / "step-00000005")
        resumed, said = trained(tmp_path / "resumed.json", *common, "--scheduler", "none", *keep)
        assert "train: resumed after step 3" in said
        assert resumed["first_step"] == 3
        assert resumed["losses"] == none["losses"][3:]
        assert resumed["weights"] == none["weights"]

    # every graph was scheduled, and what ran is what was planned
    assert [graph["name"].split()[0] for graph in ours["graphs"]] == ["forward", "backward"]
    assert all(graph["changed"] for graph in ours["graphs"]), ours["graphs"]
    measured = ours["measured"]["graphs"]
    assert [graph["kind"] for graph in measured] == ["forward", "backward"] * accumulate
    for planned, ran in zip(ours["graphs"], measured[:2], strict=True):
        assert ran["collectives"] == planned["collectives"]
        # the plan counts what belongs to an attention kernel apart from it, so it counts more
        assert ran["matmuls_in_between"] <= planned["used"]["matmuls_in_between"]
        assert planned["used"]["matmuls_in_between"] > planned["original"]["matmuls_in_between"]
        assert abs(ran["growth_bytes"] - planned["used"]["growth_bytes"]) < 2 * 2**20
    if collectives:
        assert tuple(graph["collectives"] for graph in measured[:2]) == collectives

    # the same model on one rank, which takes the batches of all as micro batches
    micro = 2 * accumulate if sharding != "2d" else accumulate
    reference = unsharded_losses(monkeypatch, "--dtype", dtype, "--accumulate", str(micro))
    assert [float.fromhex(loss) for loss in none["losses"]] == pytest.approx(reference, rel=tolerance)


def test_a_mistake_is_told_once_and_ends_all_ranks():
    done = torchrun(ROOT / "scripts/train.py", "--sharding", "2d", "--tp", "4", ranks=2, timeout=60)
    assert done.returncode != 0
    told = "train: a world of 2 ranks cannot be divided into tensor-parallel groups of 4 (--tp)."
    assert told in done.stderr
