"""Two gloo ranks gather different parameters of one shape: digests agree, values are mixed, and somebody is told."""

from typing import Any

import pytest

from tests.support.once import found_once

WAYS = ["inductor", "backend"]
TOLD = (
    "overlap_sched: rank 0 gathers layers.0.w where rank 1 gathers layers.1.w (all_gather_into_tensor, launch 1 of "
    "ranks 0-1 in 'forward 0/0 of Layers'; 1 more gather differs), so their values are mixed, with or without "
    "overlap_sched. Let all ranks gather the same parameters in the same order: look for a branch that depends on the "
    "rank, or a loop over a set."
)
IN_BACKWARD = TOLD.replace("forward", "backward").replace("; 1 more gather differs", "")
IN_BACKWARD = IN_BACKWARD.replace(
    "rank 0 gathers layers.0.w where rank 1 gathers layers.1.w",
    "rank 0 gathers layers.1.w where rank 1 gathers layers.0.w",
)
"""Nothing asks for the gradient of the model's input, so the first layer is gathered once."""
pytestmark = [pytest.mark.slow, pytest.mark.private]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], Any]]:
    return found_once(tmp_path_factory, "gathered", "tests.support.inductor.gathered_ranks")


@pytest.mark.parametrize("way", WAYS)
def test_both_ranks_and_both_parameters_are_named_by_the_first_rank(found: Any, way: str) -> None:
    assert [rank[way, "mixed"]["warned"] for rank in found] == [[TOLD], []]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_are_alike_hear_nothing(found: Any, way: str) -> None:
    assert [rank[way, "alike"]["warned"] for rank in found] == [[], []]
    assert all("layers.0.w" in rank[way, "alike"]["shown"][0] for rank in found)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_gathered_again_in_backward_has_its_name(found: Any, way: str) -> None:
    assert [rank[way, "mixed again"]["warned"] for rank in found] == [[TOLD, IN_BACKWARD], []]


def test_code_from_a_cache_is_not_blamed_for_the_names_of_another_model(found: Any) -> None:
    """It is the same code for both orders of layers, on rank 1 compiled for the wrong one."""
    assert [rank["inductor", "mixed, cold cache"]["warned"] for rank in found] == [[TOLD], []]
    assert [rank["inductor", "alike, warm cache"]["warned"] for rank in found] == [[], []]
    assert [rank["inductor", "mixed, warm cache"]["warned"] for rank in found] == [[TOLD], []]
    assert all("layers.0.w" in rank["inductor", "alike, warm cache"]["shown"][0] for rank in found)
