"""Two gloo ranks cut alike: results are the same bits."""

from typing import Any

import pytest
import torch

from tests.support.once import found_once

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_once(tmp_path_factory, "cuts", "tests.support.joint_ranks")


def test_results_are_bitwise_those_of_torchs_own_cut(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for name, case in rank.items():
            assert all(map(torch.equal, case["results"], rank["plain"]["results"])), name


def test_all_ranks_use_one_cut(ranks: list[dict[str, Any]]) -> None:
    for name in ("less", "more"):
        one, two = (rank[name] for rank in ranks)
        assert (one["again"], one["kept"]) == (two["again"], two["kept"])
        assert one["reasons"] == two["reasons"] == [None]
    assert ranks[0]["less"]["again"][0]
    assert not ranks[0]["less"]["kept"][0]
    assert ranks[0]["more"]["kept"][0]
    assert not ranks[0]["more"]["again"][0]


def test_where_the_ranks_differ_all_use_torchs_own_cut(ranks: list[dict[str, Any]]) -> None:
    for name in ("one rank fails", "other limits"):
        for rank in ranks:
            (reason,) = rank[name]["reasons"]
            assert reason is not None, name
    assert "ValueError: broken" in ranks[0]["one rank fails"]["reasons"][0]


def test_afterwards_they_agree_again(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["less again"]["reasons"] == [None]
        assert rank["less again"]["again"] == rank["less"]["again"]
