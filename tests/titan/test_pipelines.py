"""GraphPP by torchtitan's real trainer on four CPU ranks, with our pass and without: bit for bit the same training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import ROOT
from tests.support.titan.jobs import DEEPSEEK, DUAL_PIPE, EP, LLAMA, OURS, ZERO_BUBBLE, Job, train

pytestmark = [pytest.mark.slow, pytest.mark.private, pytest.mark.usefixtures("titan")]
Ranks = list[dict[str, Any]]
STAGES = {rank: (0, 3) if rank < 2 else (1, 2) for rank in range(4)}
"""Of each rank: the pipeline is a V, folded behind stage 1."""


def test_a_pipeline_of_experts(titan: None, tmp_path: Path) -> None:
    """PP 2 x FSDP 2 with experts: a forward beside a backward, dI and dW apart, and a rank whose pass fails."""
    dual, zero = DEEPSEEK + EP + DUAL_PIPE, DEEPSEEK + EP + ZERO_BUBBLE
    jobs = [
        Job("dual_plain", dual),
        Job("zero_plain", zero),
        Job("dual", dual + OURS),
        Job("zero", zero + OURS),
        Job("fault", dual + OURS, "fault"),
    ]
    found = train(tmp_path, jobs, ranks=4)
    check_ordered(found["dual_plain"], found["dual"], ("fw 1", "multiplex 0", "multiplex 1", "multiplex 2"))
    check_ordered(found["zero_plain"], found["zero"], ("fw 1", "bw_di 1", "full_bw 1", "fw 2"))
    assert not any(name.startswith("multiplex") for rank in found["zero"] for name in rank["stages"])
    check_interleaved(found["dual_plain"], found["dual"])
    check_one_rank_fails(found["dual_plain"], found["dual"], found["fault"])
    check_planned(tmp_path / "dual_plain-graphs")


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


@pytest.mark.nightly
def test_a_pipeline_without_experts(titan: None, tmp_path: Path) -> None:
    """PP 2 x FSDP 2: only gathers and reductions communicate, each with nothing beside it."""
    jobs = [Job(name, LLAMA + DUAL_PIPE + ours) for name, ours in (("plain", ()), ("ours", OURS))]
    found = train(tmp_path, jobs, ranks=4)
    assert losses(found["ours"]) == losses(found["plain"])
    for before, after in zip(found["plain"], found["ours"], strict=True):
        assert after["warned"] == []
        for name, graph in after["stages"].items():
            assert graph["step_us"] <= before["stages"][name]["step_us"]


def losses(found: Ranks) -> list[Any]:
    return [rank["losses"] for rank in found]


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


def check_planned(graphs: Path) -> None:
    """A job of the stages' own graphs; the first one has no halves of its backward."""
    blocks = {"forward": "fw", "backward": "full_bw", "input_gradient": "bw_di", "weight_gradient": "bw_dw"}
    text = 'format = "overlap-pipeline/1"\nranks = 2\nmicro_batches = 4\n[link]\nbandwidth = "50GB/s"\n'
    for stage in range(4):
        text += "[[stage]]\n" + "".join(
            f'{block} = {{ problem = "{stage}-{kind}.json", output = "64kB" }}\n'
            for block, kind in blocks.items()
            if (graphs / f"{stage}-{kind}.json").exists()
        )
    (graphs / "job.toml").write_text(text)
    command = [sys.executable, "-m", "overlap_sched", "pipeline", str(graphs / "job.toml"), "--json", "--find"]
    written, ordered = (
        json.loads(subprocess.run([*command, *more], cwd=ROOT, capture_output=True, check=True).stdout)
        for more in ((), ("--order-graphs",))
    )
    steps = [{one["name"]: one["step_us"] for one in found["schedules"]} for found in (written, ordered)]
    assert steps[0].keys() == steps[1].keys() >= {"1f1b", "zbv", "dualpipev", "found"}
    assert all(steps[1][name] < steps[0][name] for name in steps[0])
    assert min(steps[1].values()) == steps[1]["found"]
    pairs = [(one["before"], one["ordered"]) for one in ordered["pairs"]]
    assert len(pairs) == 16
    assert sum(after["exposed_us"] for _, after in pairs) < 0.25 * sum(before["exposed_us"] for before, _ in pairs)
    assert all(after["peak_bytes"] <= before["peak_bytes"] for before, after in pairs)


def launched(order: list[str]) -> list[str]:
    kinds = ("all_gather", "reduce_scatter_tensor", "all_reduce", "all_to_all")
    return [name for name in order if name.removeprefix("bw_").startswith(kinds)]
