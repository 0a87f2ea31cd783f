"""torchtitan's real trainer on two and four CPU ranks, with our pass and without: bit for bit the same training."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.titan.jobs import DEEPSEEK, EP, FULL, LLAMA, OURS, TP, Job, precompile, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("titan")]
Found = dict[str, list[dict[str, Any]]]
RANKS_2 = ("--parallelism.data_parallel_shard_degree", "2")


@pytest.fixture(scope="module")
def two_ranks(titan: None, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """FSDP, FSDP with experts, with regions that Inductor compiles, with a fault, with a precompiled artifact."""
    folder = tmp_path_factory.mktemp("two_ranks")
    order = precompile(folder, *LLAMA, "--compile.pass_pipeline", "overlap_sched")
    loaded = (*LLAMA, *OURS, *RANKS_2, "--compile.precompile_artifact_dir", str(folder))
    jobs = [
        Job("plain", LLAMA),
        Job("ours", LLAMA + OURS),
        Job("regions", LLAMA + OURS, "regions"),
        Job("fault", LLAMA + OURS, "fault"),
        Job("loaded", loaded),
        Job("experts_plain", DEEPSEEK + EP),
        Job("experts", DEEPSEEK + EP + OURS),
    ]
    return {**train(folder, jobs), "precompiled": [{"order": order}]}


@pytest.fixture(scope="module")
def four_ranks(titan: None, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """FSDP 2 x TP 2."""
    jobs = [Job("plain", LLAMA + TP), Job("ours", LLAMA + TP + OURS)]
    return train(tmp_path_factory.mktemp("four_ranks"), jobs, ranks=4)


def losses(found: list[dict[str, Any]]) -> list[Any]:
    return [rank["losses"] for rank in found]


def check_better(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """The same training, in one other order on all ranks, with more compute behind its communication."""
    assert losses(ours) == losses(plain)
    assert len(losses(plain)[0]) == 3
    for before, after in zip(plain, ours, strict=True):
        (report,) = after["reports"]
        assert report["changed"]
        assert after["warned"] == []
        assert report["scheduled"]["exposed_us"] < report["original"]["exposed_us"]
        assert report["scheduled"]["peak_bytes"] <= report["original"]["peak_bytes"]
        assert after["between"] > before["between"]
        assert sorted(after["order"]) == sorted(before["order"])
        assert after["order"] == ours[0]["order"] != before["order"]


def test_fsdp(two_ranks: Found) -> None:
    check_better(two_ranks["plain"], two_ranks["ours"])


def test_experts(two_ranks: Found) -> None:
    check_better(two_ranks["experts_plain"], two_ranks["experts"])


def test_fsdp_with_tensor_parallelism(four_ranks: Found) -> None:
    check_better(four_ranks["plain"], four_ranks["ours"])


def planned(rank: dict[str, Any]) -> list[str]:
    order: list[str] = rank["reports"][0]["order"]
    return order


def running(rank: dict[str, Any], among: list[str]) -> list[str]:
    """The order that runs, of the nodes that are still there."""
    known = set(among)
    return [name for name in rank["order"] if name in known]


def test_the_planned_order_is_the_one_that_runs(two_ranks: Found) -> None:
    (rank, _) = two_ranks["ours"]
    assert running(rank, planned(rank)) == planned(rank)


def test_regional_compilation_keeps_the_order(two_ranks: Found) -> None:
    """Each region is one node now; the others run in the order that was planned."""
    assert losses(two_ranks["regions"]) == losses(two_ranks["plain"])
    for rank in two_ranks["regions"]:
        assert rank["regions"] > 0
        left = set(rank["order"])
        assert running(rank, planned(rank)) == [name for name in planned(rank) if name in left]
        assert len(left & set(planned(rank))) > 0.9 * len(planned(rank))


def test_a_fault_on_one_rank_leaves_the_order_of_torchtitan_on_all(two_ranks: Found) -> None:
    assert losses(two_ranks["fault"]) == losses(two_ranks["plain"])
    for rank, before in zip(two_ranks["fault"], two_ranks["plain"], strict=True):
        assert rank["order"] == before["order"]
        assert len(rank["reports"]) == 1
        assert not rank["reports"][0]["changed"]
        assert rank["warned"]
    assert "ZeroDivisionError: injected" in two_ranks["fault"][1]["warned"][0]


def test_all_ranks_run_the_order_of_a_precompiled_artifact(two_ranks: Found) -> None:
    """Nothing is scheduled and nothing agreed on: the order came with the file."""
    assert losses(two_ranks["loaded"]) == losses(two_ranks["plain"])
    order = two_ranks["precompiled"][0]["order"]
    for rank in two_ranks["loaded"]:
        assert running(rank, order) == order
        assert rank["reports"] == []
        assert rank["warned"] == []


def test_full_compilation(titan: None, tmp_path: Path) -> None:
    """Inductor compiles the whole step, and our plug-in orders what it has fused."""
    found = train(tmp_path, [Job("plain", LLAMA + FULL), Job("ours", LLAMA + FULL + OURS)])
    assert losses(found["ours"]) == losses(found["plain"])
    for rank in found["ours"]:
        (report,) = rank["reports"]
        assert report["changed"]
        assert report["stage"] == "inductor"
        assert report["scheduled"]["exposed_us"] < report["original"]["exposed_us"]
        assert rank["warned"] == []
