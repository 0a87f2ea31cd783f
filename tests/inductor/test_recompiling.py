"""Ranks that compile again, each by itself and at its own time: bitwise as without us, or an error before a launch."""

import json
from pathlib import Path

import pytest

from tests.support.inductor.recompiling import NAMED
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow

RIGHT = {"equal", "stopped", "left"}
STOPS = {name for name in NAMED if "breaks" in name}
"""A rank whose graph breaks where the launches of others cross cannot follow them."""


def outcomes(folder: Path, programs: str, ranks: int, backend: str = "overlap_sched") -> list[dict[str, str]]:
    run_ranks("tests.support.inductor.recompiling", folder, programs, backend, ranks=ranks, limit_s=400)
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "programs"), [pytest.param(2, "named", marks=pytest.mark.private), (3, "logs,breaks,trains logs")]
)
def test_a_rank_alone_follows_what_the_others_run_or_stops(tmp_path: Path, ranks: int, programs: str) -> None:
    found = outcomes(tmp_path, programs, ranks)
    for name in found[0]:
        of_ranks = {one[name] for one in found}
        assert of_ranks == ({"stopped", "left"} if name in STOPS else {"equal"}), name


def test_inductor_follows_too(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "logs,trains logs", 2, "inductor")
    assert [set(one.values()) for one in found] == [{"equal"}] * 2


def test_random_programs(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "500-511", 2)
    assert [one for rank in found for one in rank.values() if one not in RIGHT] == []
    assert sum(one == "equal" for rank in found for one in rank.values()) > 12
