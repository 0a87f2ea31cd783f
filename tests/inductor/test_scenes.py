"""Two and four gloo ranks train: where they agree all have the new order, where one is odd all have the original one.

The protocol by itself is tested in ``tests/distributed``; these are steps that are really compiled and run.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.inductor.models import FORWARD_GAINS
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow
Found = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, 4], ids=["two ranks", "four ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found in each scene."""
    folder: Path = tmp_path_factory.mktemp("scenes")
    run_ranks("tests.support.inductor.scenes", folder, ranks=request.param)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("scene", ["equal", "equal, in generated code", "costs of rank 0"])
def test_ranks_that_are_alike_take_the_new_order(found: Found, scene: str) -> None:
    gains = FORWARD_GAINS or scene != "equal, in generated code"
    for rank in found:
        assert (rank[scene]["equal"], rank[scene]["changed"]) == (True, [gains, True])
        forward, backward = rank[scene]["reasons"]
        assert backward is None
        assert forward is None if gains else forward.startswith("no better order was found: ")


@pytest.mark.parametrize(
    ("scene", "part"),
    [
        ("graph", "problem"),
        ("options", "options"),
        ("options, in generated code", "options"),
        ("costs", "costs"),
    ],
)
def test_an_odd_rank_leaves_all_with_the_original_order(found: Found, scene: str, part: str) -> None:
    last = len(found) - 1
    others = "rank 0" if last == 1 else f"ranks 0-{last - 1}"
    for rank in found:
        assert rank[scene]["equal"]
        assert rank[scene]["changed"] == [False, False]
        for reason in rank[scene]["reasons"]:
            assert f"the ranks differ in {part}: {others} against rank {last}" in reason


def test_graphs_compiled_in_different_order(found: Found) -> None:
    scenes = [rank["different order"] for rank in found]
    assert all(scene["equal"] for scene in scenes)
    by_graph = [scene["by graph"] for scene in scenes]
    assert all(one == by_graph[0] for one in by_graph)
    assert not all(by_graph[0])  # somebody has to go on without knowing


def test_a_step_that_one_rank_has_compiled_already(found: Found) -> None:
    for rank in found:
        first, again = rank["hit and miss"]
        assert first["equal"]
        assert again["equal"]
        assert first["changed"] == [True, True]
    assert [rank["hit and miss"][1]["changed"] for rank in found] == [[True, True]] * (len(found) - 1) + [[]]


def test_stages_of_a_pipeline_ask_only_among_themselves(found: Found) -> None:
    for rank in found:
        assert rank["pipeline"]["equal"]
        if len(found) == 4:  # of two ranks, each would be a stage, with nobody to agree with
            assert rank["pipeline"]["changed"] == [True, True]


def test_a_rank_that_dies(found: Found) -> None:
    last = len(found) - 1
    for rank in found[:-1]:
        scene = rank["dies"]
        assert scene["changed"][:1] == [False]
        assert scene["reasons"][0].startswith(
            f"rank {last} did not publish an order for graph 'forward 0/0 of Pair' within 2 s."
        )
        assert scene["error"]  # of gloo, in the first collective
