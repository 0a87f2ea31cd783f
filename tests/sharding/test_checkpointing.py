"""Activation checkpointing of every common kind with ``shard``, next to ``fully_shard``, on two gloo ranks."""

import json
from typing import Any

import pytest

from tests.support.once import filled_once
from tests.support.ranks import run_ranks
from tests.support.sharding.checkpointed import KINDS

pytestmark = pytest.mark.slow
TO_ROUNDING = 2e-6


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = filled_once(
        tmp_path_factory,
        "sharding-checkpointed",
        lambda folder: run_ranks("tests.support.sharding.checkpointed", folder, ranks=2, limit_s=600),
    )
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_fully_shard(ranks: list[dict[str, Any]], kind: str) -> None:
    for seen in ranks:
        ways = seen[kind]
        want = [pytest.approx(step, rel=TO_ROUNDING) for step in ways.pop("fully_shard")]
        assert len({loss for loss, _ in ways["eager"]}) == 2
        for way, steps in ways.items():
            assert steps == want, way
