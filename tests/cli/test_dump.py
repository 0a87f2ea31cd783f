"""The command line on a graph dump; ``transcripts`` have what it prints."""

import json
from pathlib import Path

import pytest

from overlap_sched.cost import H100, Collective, Compute, Roofline
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.problem import Group
from overlap_sched.problem.file import read_problem
from tests.support.examples import Command, run
from tests.support.inputs import DUMP

pytest.importorskip("torch")

FULL_BYTES = 64 * 64 * 4096 * 4


def test_a_dump_is_planned_and_saved_redacted(dump: str, cli: Command) -> None:
    wanted = ("--group", "0=64", "--headroom", "100%", "--out", "order.json")
    found = cli.json("plan", dump, *wanted, "--save-problem", "saved.json.gz", "--redact")
    assert (found["name"], found["nodes"], found["memory_model"]) == ("layer", 12, "runtime")
    assert found["step_us"] < found["original_step_us"]
    names = json.loads(Path("order.json").read_text())
    assert names.index("gather") < names.index("mm_1") < names.index("full")
    again = cli.json("plan", "saved.json.gz", "--headroom", "100%")
    assert {key for key in found if found[key] != again[key]} <= {"name", "schedule_s", "prices", "gain_range"}
    assert again["name"] == "redacted"


def test_the_device_and_the_network_set_the_times(dump: str, cli: Command) -> None:
    matmuls = (Compute("aten.mm.default", 2 * 8192 * 4096**2, 1, shape=(1, 8, 8, k)) for k in (4096, 8192))
    two_matmuls_us = sum(map(Roofline(H100).compute_us, matmuls))
    model, group = model_of(read_cluster("dgx-h100")), Group(64, intra_node=False, nodes=8)
    ops = ("all_gather_into_tensor", "reduce_scatter_tensor")
    collectives_us = sum(model.collective_us(Collective(op, FULL_BYTES, group)) for op in ops)

    def step_us(*options: str) -> float:
        return float(cli.json("plan", dump, "--group", "0=64", "--no-contention", *options)["original_step_us"])

    assert step_us() == pytest.approx(two_matmuls_us + collectives_us)
    assert step_us("--comm-scale", "4") == pytest.approx(two_matmuls_us + 4 * collectives_us)
    assert step_us("--device", "A100") > step_us()


def test_ranks_tell_whether_a_group_fits_a_node(dump: str, cli: Command) -> None:
    Path(dump).write_text(DUMP.replace("64, '0'", "8, '0'"))
    groups = ("0=0,1,2,3,4,5,6,7", "0=8", "0=0,8,16,24,32,40,48,56")
    inside, same, across = (cli.json("plan", dump, "--group", group)["original_step_us"] for group in groups)
    assert inside == same < across


SIZES = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[s0, 1024][1024, 1]cuda:0"):
        scaled: "f32[s0, 1024][1024, 1]cuda:0" = torch.ops.my_cli_kernels.scale.default(x)
        return (scaled,)
"""
MODULES = {
    "my_cli_kernels": "import torch\n@torch.library.custom_op('my_cli_kernels::scale', mutates_args=())\n"
    "def scale(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
    "@scale.register_fake\ndef _(x):\n    return torch.empty_like(x)\n",
    "my_program": "import sys\nsys.exit(3)\n",
    "my_cli_interrupted": "raise KeyboardInterrupt\n",
}


def test_sizes_and_packages_that_the_graph_needs(
    dump: str, inputs: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    Path("readable.txt").write_text(SIZES)
    for name, text in MODULES.items():
        Path(f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(inputs)
    for size in (512, 64):
        found = cli.json("plan", "readable.txt", "--size", f"s0={size}", "--import", "my_cli_kernels")
        assert found["original_peak_bytes"] == 2 * size * 1024 * 4
    assert "--import no_such_package: it cannot be imported" in cli.refused("plan", dump, "--import", "no_such_package")
    assert "(SystemExit: 3)" in cli.refused("plan", dump, "--import", "my_program")
    assert run("plan", dump, "--import", "my_cli_interrupted") == 130


def test_a_statement_that_is_not_understood(dump: str, cli: Command) -> None:
    Path(dump).write_text(DUMP.replace("return (mm, grad)", "print(mm)\n        return (mm, grad)"))
    assert "layer.py, line 15" in cli.refused("plan", dump, "--group", "0=64")


def priced(dump: str, *options: str) -> tuple[list[float], object, object]:
    """Times of collectives, the group and the contention, as a problem file saved."""
    assert run("plan", dump, *options, "--effort", "0", "--save-problem", "out.json") == 0
    problem = read_problem("out.json")
    return [problem.nodes[v].time_us for v in problem.collectives], problem.groups["0"], problem.contention


def test_a_cluster_prices_and_places(dump: str) -> None:
    times, group, contention = priced(dump, "--group", "0=64", "--cluster", "dgx-h100")
    assert (group.size, group.nodes) == (64, 8)  # type: ignore[attr-defined]
    assert contention.slowdown == {"": 1.189}  # type: ignore[attr-defined]
    slower, _, none = priced(dump, "--group", "0=64", "--cluster", "pcie-box", "--no-contention")
    assert not none
    assert all(a < b for a, b in zip(times, slower, strict=True))
    _, group, _ = priced(dump, "--group", "0=fsdp", "--mesh", "fsdp=64,tp=8", "--cluster", "dgx-h100")
    assert (group.size, group.nodes) == (64, 64)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "cluster"),
    [("", "dgx-h100"), ("--device A100", "dgx-a100"), ("--device cpu", ""), ("--cluster dgx-h100", "")],
)
def test_what_is_assumed_is_said(options: str, cluster: str, dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", dump, "--group", "0=64", "--effort", "0", *options.split()) == 0
    err = capsys.readouterr().err
    assert (f"priced for {cluster} with 8 ranks" in err) if cluster else ("priced for" not in err)
