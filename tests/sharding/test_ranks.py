"""``shard`` next to ``fully_shard`` on two and four gloo ranks: losses, gradients, weights, checkpoints, compiled."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpointed_ranks import KINDS
from tests.support.examples import at_night
from tests.support.ranks import filled_once, found_once, run_ranks
from tests.support.sharding_ranks import PAGE

pytestmark = pytest.mark.slow
TO_ROUNDING = 2e-6
"""Of fp32 sums in another order, relative."""
LOW_PRECISION, FP16_SUMS = 3e-2, 1e-5
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, at_night(4)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank saw."""

    def train(folder: Path) -> None:
        run_ranks("tests.support.sharding_ranks", folder, "compare", ranks=request.param, limit_s=600)

    folder = filled_once(tmp_path_factory, f"sharding-{request.param}", train)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(request.param)]


def compared(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: way for name, way in seen.items() if "fully_shard" in way}


def near(steps: list[list[float]], tolerance: float) -> list[Any]:
    return [pytest.approx(step, rel=tolerance) for step in steps]


@pytest.mark.private
def test_each_step_is_that_of_fully_shard_to_rounding(ranks: Seen) -> None:
    for seen in ranks:
        assert len(compared(seen)) >= 10
        for name, way in compared(seen).items():
            tolerance = FP16_SUMS if name == "fp16 sums" else TO_ROUNDING
            assert way["eager"] == near(way["fully_shard"], tolerance), name
            assert way["distance"] < tolerance, name
            assert len({step[0] for step in way["eager"]}) == len(way["eager"])  # training went somewhere


@pytest.mark.private
def test_checkpoints_go_both_ways(ranks: Seen) -> None:
    for seen in ranks:
        for way in ("to fully_shard", "from fully_shard"):
            assert seen[way]["resumed"] == near(seen[way]["went on"], TO_ROUNDING), way


@pytest.mark.private
def test_compiled_steps_are_those_of_fully_shard(ranks: Seen) -> None:
    for seen in ranks:
        how = "accumulated" if len(ranks) == 2 else "tensor parallel"
        assert seen[f"compiled, {how}"]["steps"] == near(seen[f"{how}, short"]["fully_shard"], TO_ROUNDING)
        if len(ranks) == 2:
            assert seen["compiled alone"]["steps"] == near(seen["even"]["fully_shard"], LOW_PRECISION)


@pytest.mark.private
def test_the_plug_in_reorders_and_changes_no_bit(ranks: Seen) -> None:
    if len(ranks) != 2:
        pytest.skip("Inductor is run on two ranks")
    for seen in ranks:
        alone, ours = seen["compiled alone"], seen["compiled with us"]
        assert [changed for changed, _ in ours["reports"]] == [True, True], ours["reports"]
        assert alone["reports"] == []
        assert ours["steps"] == alone["steps"]
        assert ours["weights"] == alone["weights"]


@pytest.mark.private
def test_ranks_without_rows_meet_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing waits but for compilers: with three ranks on a machine with no core to spare these take minutes."""
    ranks = found_once(tmp_path_factory, "rows", "tests.support.sharding_ranks", "rows", ranks=3, limit_s=900)
    for seen in ranks:
        for way in ("DTensor", "shard"):
            assert all(map(torch.equal, seen[f"{way} alone"], seen[f"{way} ours"]))
            assert len(seen[f"{way} alone"]) == len(seen[f"{way} ours"])
            assert len(seen[f"{way} reasons"]) == len(ranks[0][f"{way} reasons"]) > 0
            assert not any("within" in (reason or "") for reason in seen[f"{way} reasons"])


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    return found_once(tmp_path_factory, "sharding-checkpointed", "tests.support.checkpointed_ranks", limit_s=600)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_fully_shard(checkpointed: list[dict[str, Any]], kind: str) -> None:
    for seen in checkpointed:
        ways = seen[kind]
        want = [pytest.approx(step, rel=TO_ROUNDING) for step in ways.pop("fully_shard")]
        assert len({loss for loss, _ in ways["eager"]}) == 2
        for way, steps in ways.items():
            assert steps == want, way


def test_the_second_start_hits(tmp_path: Path) -> None:
    counted = []
    for start in ("first", "second"):
        file = tmp_path / start
        where = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        run_ranks("tests.support.sharding_ranks", file, "cached", ranks=1, limit_s=600, **where)
        counted.append(json.loads(file.read_text()))
    assert counted == [
        {"autograd_cache_miss": 1, "autograd_cache_saved": 1, "fxgraph_cache_miss": 2},
        {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2},
    ]


def test_the_program_runs_and_is_reordered(tmp_path: object) -> None:
    said = run_ranks(
        "tests.support.sharding_ranks", tmp_path, "page", ranks=2, limit_s=400, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)
    )
    lines = [line for line in said.splitlines() if line.startswith(("forward", "backward"))]
    assert [line.split()[0] for line in lines] == ["forward", "backward"] * 2, said
    assert "left as it was" not in said
    program, frameworks = PAGE.read_text().split("## In Accelerate")  # those are run by tests/test_frameworks.py
    assert program.count("```python") == program.count("```python run")
    assert frameworks.count("```python") == 5  # and one by tests/test_deepspeed.py
