"""Real gloo jobs of two and four ranks: one process each, the default process group's own store."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_ranks

pytest.importorskip("torch.distributed")


class Job:
    """What a job's ranks decided: ``on(scene)`` is one entry per rank that lived."""

    def __init__(self, scenes: str, ranks: int, folder: Path) -> None:
        run_ranks("tests.support.agreement_ranks", scenes, folder, ranks=ranks, fresh=True)
        files = [folder / f"{rank}.json" for rank in range(ranks)]
        self.outcomes = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        self.last = ranks - 1

    def on(self, scene: str) -> list[Any]:
        return [rank[scene] for rank in self.outcomes if scene in rank]

    def same(self, scene: str) -> Any:
        """The one thing that all ranks decided."""
        first, *others = self.on(scene)
        assert all(other == first for other in others)
        return first


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two ranks", "four ranks"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    ran = Job("scenes", request.param, tmp_path_factory.mktemp("scenes"))
    assert all(ran.outcomes)
    return ran


@pytest.mark.parametrize("part", ["options", "costs", "order", "operators"])
def test_one_rank_with_another(ran: Job, part: str) -> None:
    assert ran.same("equal")["agreed"]
    assert ran.same("costs of rank 0")["agreed"]  # measured on each
    outcome = ran.same(part)
    assert (outcome["agreed"], outcome["differs"]) == (False, {part: [list(range(ran.last)), [ran.last]]})


def test_graphs_compiled_in_different_order(ran: Job) -> None:
    outcome = ran.same("different order")
    assert sorted(outcome) == ["one", "other"]
    assert not all(graph["agreed"] for graph in outcome.values())
    assert not any(graph["missing"] for graph in outcome.values())


def test_a_cache_hit_on_one_rank_and_a_miss_on_the_others(ran: Job) -> None:
    assert [len(outcome) for outcome in ran.on("hit and miss")] == [2] * ran.last + [1]
    assert all(outcome["agreed"] for rank in ran.on("hit and miss") for outcome in rank)


def test_a_rank_that_fails_only_the_second_time(ran: Job) -> None:
    first, second = ran.same("fails the second time")
    assert first["agreed"]
    assert (second["agreed"], second["launches_alike"]) == (False, True)
    assert second["reason"] == f"rank {ran.last} could not schedule this graph (KeyError: 'mm'); launch order kept."


def test_a_rank_that_comes_around_the_limit(ran: Job) -> None:
    for outcome in zip(*ran.on("late"), strict=True):
        assert all(one == outcome[0] for one in outcome)
    # and the process group is as it was
    assert ran.on("collectives still work") == [ran.last + 1] * (ran.last + 1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_dies(ranks: int, tmp_path: Path) -> None:
    ran = Job("one_dies", ranks, tmp_path)
    assert not ran.outcomes[ran.last]
    outcome = ran.same("died")
    assert (outcome["agreed"], outcome["missing"], outcome["in_doubt"]) == (False, [ran.last], False)
    assert outcome["reason"].startswith(f"rank {ran.last} did not publish an order for graph 'died' within 1 s.")


@pytest.mark.slow
def test_the_rank_that_serves_the_store_dies(tmp_path: Path) -> None:
    (outcome,) = Job("server_dies", 2, tmp_path).on("no store")
    assert (outcome["agreed"], outcome["in_doubt"]) == (False, True)
    assert "Is the process that serves the store" in outcome["reason"]
