"""Gloo ranks train: where they agree all have the new order, where one is odd all keep the order of their launches.

The protocol by itself is tested in ``tests/distributed``; these are steps that are really compiled and run.
"""

from typing import Any

import pytest
import torch

from tests.support.examples import at_night
from tests.support.inductor.alike import LAYERS
from tests.support.inductor.models import FORWARD_GAINS
from tests.support.ranks import found_once

pytestmark = pytest.mark.slow
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two ranks found in each scene; they are processes with hashes of their own."""
    return scenes_of(2, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four ranks found in those scenes in which it matters that more than one rank is not odd."""
    return scenes_of(4, tmp_path_factory, "equal", "pipeline", "uneven", "dies")


@pytest.fixture(params=["two", at_night("four")])
def found(request: pytest.FixtureRequest) -> Found:
    """On two ranks, and at night on four."""
    ranks: Found = request.getfixturevalue(request.param)
    return ranks


def scenes_of(ranks: int, factory: pytest.TempPathFactory, *scenes: str) -> Found:
    """What each rank finds in these scenes; none named: in all."""
    scenes_of_them = "tests.support.inductor.scenes"
    return found_once(factory, f"scenes-{ranks}", scenes_of_them, *scenes, ranks=ranks, fresh=ranks == 2)


@pytest.mark.parametrize("scene", ["equal", "experts", "experts, in generated code"])
def test_ranks_that_are_alike_take_the_new_order(two: Found, scene: str) -> None:
    """Experts, too, whose sizes only the data knows: the graphs of all ranks are one."""
    for rank in two:
        assert rank[scene]["equal"]
        assert rank[scene]["kept"] == [None, None]
        assert rank[scene]["changed"] == ([True, True] if FORWARD_GAINS else two[0][scene]["changed"])
        assert rank[scene]["changed"][1]
        assert rank[scene]["launches"] == two[0][scene]["launches"]


def test_rows_that_do_not_divide_by_the_ranks(found: Found) -> None:
    for rank in found:
        assert rank["uneven"]["equal"]
        assert rank["uneven"]["changed"][1]
        assert rank["uneven"]["moved"] == [False, False]
        assert rank["uneven"]["launches"] == found[0]["uneven"]["launches"]
        for kept in rank["uneven"]["kept"]:
            assert kept.startswith(("the ranks differ in operators: rank", "the ranks differ in tensor sizes: rank"))
            assert "; launch order kept." in kept


def test_stages_of_a_pipeline_ask_only_among_themselves(found: Found) -> None:
    for rank in found:
        assert rank["pipeline"]["equal"]
        if len(found) == 4:  # of two ranks, each would be a stage, with nobody to agree with
            assert rank["pipeline"]["changed"] == [True, True]


def test_a_rank_that_dies(found: Found) -> None:
    last = len(found) - 1
    for rank in found[:-1]:
        scene = rank["dies"]
        assert scene["changed"][:1] == [True]  # by a rule that needs no answer
        assert scene["moved"][:1] == [False]
        missing = f"rank {last} did not publish an order for graph 'forward 0/0 of Pair' within"
        rewrites = "overlap_sched rewrites no collective of 'forward 0/0 of Pair'"
        assert any(line.startswith(f"{rewrites}: {missing} 2 s. Such a rank has died") for line in scene["said"])
        assert scene["kept"][0].startswith(f"{missing} 0.2 s (instead of 2 s, as not all ranks came the last time).")
        assert scene["error"]  # of gloo, in the first collective


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_once(tmp_path_factory, "alike", "tests.support.inductor.alike")


@pytest.mark.parametrize("way", ["backend", "inductor"])
@pytest.mark.parametrize("operator", ["dispatch", "mix"])
def test_launches_stay_and_results_are_right(alike: list[dict[Any, Any]], operator: str, way: str) -> None:
    for rank in alike:
        alone, value, kept, launches, told = rank[operator, way]
        torch.testing.assert_close(value, alone)
        assert kept == [True]
        assert sorted(launches[0]) == sorted("gD" * LAYERS)
        assert launches == alike[0][operator, way][3]
        assert way == "inductor" or launches == ["gD" * LAYERS]  # Inductor moves them before anything of ours runs
        assert bool(told) == (rank is alike[0])
    said = "takes a process group" if operator == "dispatch" else "may communicate"
    assert any(f"deep_ranks::{operator}: {said}" in one for one in alike[0][operator, way][4])
