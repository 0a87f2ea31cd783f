"""torchtitan's real trainer on two and four CPU ranks, with our pass and without: bit for bit the same training."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.titan.jobs import (
    DEEPSEEK,
    DUAL_PIPE,
    EP,
    FULL,
    JIT,
    LLAMA,
    OURS,
    TP,
    ZERO_BUBBLE,
    Job,
    precompile,
    train,
)

pytestmark = [pytest.mark.private, pytest.mark.usefixtures("titan")]
Ranks = list[dict[str, Any]]
FITTED = ("--override.imports", 'overlap_sched.titan.options={"memory_limit": "90%"}', *OURS[2:])
RANKS_2 = ("--parallelism.data_parallel_shard_degree", "2")


def test_two_ranks(titan: None, tmp_path: Path) -> None:
    """FSDP, FSDP with experts, with a fault, with a precompiled artifact; ranks start once for all of them."""
    folder = tmp_path
    order = precompile(folder, *LLAMA, "--compile.pass_pipeline", "overlap_sched")
    loaded = (*LLAMA, *OURS, *RANKS_2, "--compile.precompile_artifact_dir", str(folder))
    jobs = [Job("plain", LLAMA), Job("ours", LLAMA + OURS), Job("fault", LLAMA + OURS, "fault"), Job("loaded", loaded)]
    jobs += [Job("experts_plain", DEEPSEEK + EP), Job("experts", DEEPSEEK + EP + OURS)]
    found = train(folder, jobs)
    check_better(found["plain"], found["ours"])
    check_better(found["experts_plain"], found["experts"])
    for rank in found["ours"]:
        assert running(rank, planned(rank)) == planned(rank)
    check_fault(found["plain"], found["fault"])
    check_artifact(found["plain"], found["loaded"], order)


@pytest.mark.nightly
def test_what_else_is_done_to_a_graph(titan: None, tmp_path: Path) -> None:
    """It is fitted; Inductor compiles regions of it; FSDP 2 x TP 2."""
    plain, ours = Job("plain", LLAMA), Job("ours", LLAMA + OURS)
    found = train(tmp_path, [plain, ours, Job("fitted", LLAMA + FITTED), Job("regions", LLAMA + OURS, "regions")])
    assert losses(found["fitted"]) == losses(found["plain"])
    for before, after in zip(found["ours"], found["fitted"], strict=True):
        assert after["warned"] == []
        (was,), (report,) = before["reports"], after["reports"]
        assert report["scheduled"]["peak_bytes"] <= 0.9 * was["original"]["peak_bytes"]
        assert after["order"] == found["fitted"][0]["order"]
    check_regions(found["plain"], found["regions"])
    found = train(tmp_path, [Job("plain", LLAMA + TP), Job("ours", LLAMA + TP + OURS)], ranks=4)
    check_better(found["plain"], found["ours"])


def losses(found: Ranks) -> list[Any]:
    return [rank["losses"] for rank in found]


def check_better(plain: Ranks, ours: Ranks) -> None:
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


def planned(rank: dict[str, Any]) -> list[str]:
    order: list[str] = rank["reports"][0]["order"]
    return order


def running(rank: dict[str, Any], among: list[str]) -> list[str]:
    """The order that runs, of the nodes that are still there."""
    known = set(among)
    return [name for name in rank["order"] if name in known]


def launched(order: list[str]) -> list[str]:
    """Collectives in the order in which they are launched."""
    kinds = ("all_gather", "reduce_scatter_tensor", "all_reduce", "all_to_all")
    return [name for name in order if name.removeprefix("bw_").startswith(kinds)]


def check_regions(plain: Ranks, regions: Ranks) -> None:
    """Each region is one node now; the others run in the order that was planned."""
    assert losses(regions) == losses(plain)
    for rank in regions:
        assert rank["regions"] > 0
        left = set(rank["order"])
        assert running(rank, planned(rank)) == [name for name in planned(rank) if name in left]
        assert len(left & set(planned(rank))) > 0.9 * len(planned(rank))


def check_fault(plain: Ranks, fault: Ranks) -> None:
    """One rank fails and keeps the order of torchtitan; the other one may only move what it does not launch."""
    assert losses(fault) == losses(plain)
    assert [launched(rank["order"]) for rank in fault] == [launched(rank["order"]) for rank in plain]
    healthy, broken = fault
    assert broken["order"] == plain[1]["order"]
    assert not broken["reports"][0]["changed"]
    assert broken["warned"][0] == "overlap_sched leaves 'training step' as it was: ZeroDivisionError: injected"
    assert healthy["between"] >= plain[0]["between"]


def check_artifact(plain: Ranks, loaded: Ranks, order: list[str]) -> None:
    """All ranks run the order of the file; nothing is scheduled, and nothing agreed on."""
    assert losses(loaded) == losses(plain)
    for rank in loaded:
        assert running(rank, order) == order
        assert rank["reports"] == []
        assert rank["warned"] == []


def test_the_jit_mode(titan: None, tmp_path: Path) -> None:
    """torchtitan's own bucketing and its settings of Inductor, and our plug-in on top of them."""
    found = train(tmp_path, [Job("plain", LLAMA + JIT), Job("ours", LLAMA + JIT + OURS)])
    assert losses(found["ours"]) == losses(found["plain"])
    for rank in found["ours"]:
        assert {report["stage"] for report in rank["reports"]} == {"inductor"}
        changed = [report["name"] for report in rank["reports"] if report["changed"]]  # its settings are made again
        assert "forward 0/0 of SimpleFSDPGraphTrainerLlama3Model" in changed


@pytest.mark.nightly
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


# GraphPP by torchtitan's real trainer on four CPU ranks, with our pass and without: bit for bit the same training.


STAGES = {rank: (0, 3) if rank < 2 else (1, 2) for rank in range(4)}
"""Of each rank: the pipeline is a V, folded behind stage 1."""


def test_a_pipeline_of_experts(titan: None, tmp_path: Path) -> None:
    """PP 2 x FSDP 2 with experts: a forward beside a backward, dI and dW apart, and a rank whose pass fails."""
    dual, zero = DEEPSEEK + EP + DUAL_PIPE, DEEPSEEK + EP + ZERO_BUBBLE
    jobs = [Job("dual_plain", dual), Job("zero_plain", zero), Job("dual", dual + OURS), Job("zero", zero + OURS)]
    found = train(tmp_path, [*jobs, Job("fault", dual + OURS, "fault")], ranks=4)
    check_ordered(found["dual_plain"], found["dual"], ("fw 1", "multiplex 0", "multiplex 1", "multiplex 2"))
    check_ordered(found["zero_plain"], found["zero"], ("fw 1", "bw_di 1", "full_bw 1", "fw 2"))
    assert not any(name.startswith("multiplex") for rank in found["zero"] for name in rank["stages"])
    check_interleaved(found["dual_plain"], found["dual"])
    check_one_rank_fails(found["dual_plain"], found["dual"], found["fault"])


def test_two_ranks_of_a_pipeline(titan: None, tmp_path: Path) -> None:
    """PP 2: each rank agrees with itself, and no graph communicates."""
    models = {"dual": LLAMA + DUAL_PIPE, "zero": LLAMA + ZERO_BUBBLE}
    found = train(tmp_path, [Job(f"{name}{len(o)}", model + o) for o in ((), OURS) for name, model in models.items()])
    for name in models:
        plain, ours = found[f"{name}0"], found[f"{name}{len(OURS)}"]
        assert losses(ours) == losses(plain)
        for rank in ours:
            assert rank["warned"] == []
            assert {report["reason"] for report in rank["reports"]} == {"the graph has no collectives"}


def check_ordered(plain: Ranks, ours: Ranks, better: tuple[str, ...]) -> None:
    """The same training. Ranks of a stage run one order; no graph's step is longer than by torchtitan's order."""
    assert losses(ours) == losses(plain)
    assert len(losses(plain)[0]) == 3
    assert all(float.fromhex(norm) < 100.0 for *_, norm in losses(plain)[0])  # torchtitan's gradients are sound
    for k, (before, after) in enumerate(zip(plain, ours, strict=True)):
        assert after["warned"] == []
        assert after["stages"].keys() == before["stages"].keys()
        assert {int(name.split()[1]) for name in after["stages"]} == set(STAGES[k])
        for name, graph in after["stages"].items():
            was = before["stages"][name]
            assert sorted(graph["order"]) == sorted(was["order"])
            assert graph["order"] == ours[k - k % 2]["stages"][name]["order"]
            assert graph["step_us"] <= was["step_us"]
            if name in better:
                assert graph["exposed_us"] < was["exposed_us"]
                assert graph["between"] > was["between"]
        for report in after["reports"]:
            if report["changed"]:
                assert report["scheduled"]["peak_bytes"] <= report["original"]["peak_bytes"]


def check_interleaved(plain: Ranks, ours: Ranks) -> None:
    """Backward comes first by torchtitan, all of it; by us it and the forward take turns, and less stays exposed."""
    for before, after in zip(plain, ours, strict=True):
        for name in (name for name in after["stages"] if name.startswith("multiplex")):
            was, graph = before["stages"][name], after["stages"][name]
            assert was["turns"] == 1 < graph["turns"]
            assert graph["exposed_us"] < 0.2 * was["exposed_us"]


def check_one_rank_fails(plain: Ranks, ours: Ranks, fault: Ranks) -> None:
    """It keeps torchtitan's orders, the other rank with its stages their launches; other stages see nothing of it."""
    assert losses(fault) == losses(plain)
    healthy, other, partner, broken = fault
    for k, rank in enumerate((healthy, other)):
        assert [graph["order"] for graph in rank["stages"].values()] == [
            graph["order"] for graph in ours[k]["stages"].values()
        ]
    for name, graph in broken["stages"].items():
        assert graph["order"] == plain[3]["stages"][name]["order"]
        assert launched(partner["stages"][name]["order"]) == launched(graph["order"])
    assert not any(report["changed"] for report in broken["reports"])
