"""``shard`` next to ``fully_shard`` on two and four gloo ranks: losses, gradients, weights, checkpoints, compiled."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.examples import at_night
from tests.support.once import filled_once, found_once
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.private]
TO_ROUNDING = 2e-6
"""Of fp32 sums in another order, relative."""
LOW_PRECISION, FP16_SUMS = 3e-2, 1e-5
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, at_night(4)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank saw."""

    def train(folder: Path) -> None:
        run_ranks("tests.support.sharding.compare", folder, ranks=request.param, limit_s=600)

    folder = filled_once(tmp_path_factory, f"sharding-{request.param}", train)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(request.param)]


def compared(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: way for name, way in seen.items() if "fully_shard" in way}


def near(steps: list[list[float]], tolerance: float) -> list[Any]:
    return [pytest.approx(step, rel=tolerance) for step in steps]


def test_each_step_is_that_of_fully_shard_to_rounding(ranks: Seen) -> None:
    for seen in ranks:
        assert len(compared(seen)) >= 10
        for name, way in compared(seen).items():
            tolerance = FP16_SUMS if name == "fp16 sums" else TO_ROUNDING
            assert way["eager"] == near(way["fully_shard"], tolerance), name
            assert way["distance"] < tolerance, name


def test_training_went_somewhere(ranks: Seen) -> None:
    for way in compared(ranks[0]).values():
        losses = [step[0] for step in way["eager"]]
        assert len(set(losses)) == len(losses)


def test_checkpoints_go_both_ways(ranks: Seen) -> None:
    for seen in ranks:
        for way in ("to fully_shard", "from fully_shard"):
            assert seen[way]["resumed"] == near(seen[way]["went on"], TO_ROUNDING), way


def test_compiled_steps_are_those_of_fully_shard(ranks: Seen) -> None:
    for seen in ranks:
        if len(ranks) == 2:
            assert seen["compiled, accumulated"]["steps"] == near(
                seen["accumulated, short"]["fully_shard"], TO_ROUNDING
            )
            assert seen["compiled alone"]["steps"] == near(seen["even"]["fully_shard"], LOW_PRECISION)
        else:
            steps = seen["tensor parallel, short"]["fully_shard"]
            assert seen["compiled, tensor parallel"]["steps"] == near(steps, TO_ROUNDING)


def test_the_plug_in_reorders_and_changes_no_bit(ranks: Seen) -> None:
    if len(ranks) != 2:
        pytest.skip("Inductor is run on two ranks")
    for seen in ranks:
        alone, ours = seen["compiled alone"], seen["compiled with us"]
        assert [changed for changed, _ in ours["reports"]] == [True, True], ours["reports"]
        assert alone["reports"] == []
        assert ours["steps"] == alone["steps"]
        assert ours["weights"] == alone["weights"]


def test_ranks_without_rows_meet_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing waits but for compilers: with three ranks on a machine with no core to spare these take minutes."""
    ranks = found_once(tmp_path_factory, "rows", "tests.support.sharding.rows", ranks=3, limit_s=900)
    for seen in ranks:
        for way in ("DTensor", "shard"):
            assert all(map(torch.equal, seen[f"{way} alone"], seen[f"{way} ours"]))
            assert len(seen[f"{way} alone"]) == len(seen[f"{way} ours"])
            assert len(seen[f"{way} reasons"]) == len(ranks[0][f"{way} reasons"]) > 0
            assert not any("within" in (reason or "") for reason in seen[f"{way} reasons"])
