"""Two gloo ranks whose graphs differ, with operators that communicate inside: results are those of torch alone."""

from typing import Any

import pytest
import torch

from tests.support.inductor.hidden_ranks import LAYERS
from tests.support.once import found_once

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], Any]]:
    return found_once(tmp_path_factory, "hidden", "tests.support.inductor.hidden_ranks")


@pytest.mark.parametrize("way", ["backend", "inductor"])
@pytest.mark.parametrize("operator", ["dispatch", "mix"])
def test_launches_stay_and_results_are_right(found: list[dict[tuple[str, str], Any]], operator: str, way: str) -> None:
    for rank in found:
        alone, value, kept, launches, told = rank[operator, way]
        torch.testing.assert_close(value, alone)
        assert kept == [True]
        assert sorted(launches[0]) == sorted("gD" * LAYERS)
        assert launches == found[0][operator, way][3]
        assert way == "inductor" or launches == ["gD" * LAYERS]  # Inductor moves them before anything of ours runs
        assert bool(told) == (rank is found[0])
    said = "takes a process group: it is taken for" if operator == "dispatch" else "may communicate: keeps its place"
    assert any(f"deep_ranks::{operator} {said}" in one for one in found[0][operator, way][4])
