"""Two gloo ranks compile and run: the same results, the same order; ranks that differ are in ``test_scenes.py``."""

from typing import Any

import pytest
import torch

from tests.support.inductor.generated import events, matmuls_under, numbered
from tests.support.once import found_once

pytestmark = [pytest.mark.slow, pytest.mark.private]


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_once(tmp_path_factory, "alike", "tests.support.inductor.two_ranks")


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
    alone, ours = (sum(matmuls_under(events(alike[0][name]["code"][1]))) for name in ("plain", "ours"))
    assert ours >= max(alone, 6)
