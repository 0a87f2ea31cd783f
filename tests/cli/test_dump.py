"""The command line on a graph dump, shortened from what ``torch._dynamo.repro.after_aot.save_graph_repro`` writes."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from overlap_sched.cli.command import main
from overlap_sched.cost import Collective
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.problem import Group
from tests.support.examples import Command

pytest.importorskip("torch")
dumps = pytest.importorskip("overlap_sched.dump")

DUMP = """\
import torch
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, shard_1, x_1, dy_1):
        gather = torch.ops._c10d_functional.all_gather_into_tensor.default(shard_1, 64, '0');  shard_1 = None
        full = torch.ops._c10d_functional.wait_tensor.default(gather);  gather = None
        t = torch.ops.aten.t.default(full);  full = None
        mm = torch.ops.aten.mm.default(dy_1, t);  t = None
        t_1 = torch.ops.aten.t.default(dy_1);  dy_1 = None
        mm_1 = torch.ops.aten.mm.default(t_1, x_1);  t_1 = x_1 = None
        scatter = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm_1, 'sum', 64, '0');  mm_1 = None
        grad = torch.ops._c10d_functional.wait_tensor.default(scatter);  scatter = None
        return (mm, grad)

def load_args(reader):
    buf0 = reader.storage(None, 1048576)
    reader.tensor(buf0, (64, 4096), is_leaf=True)  # shard_1
    buf1 = reader.storage(None, 134217728)
    reader.tensor(buf1, (8192, 4096), is_leaf=True)  # x_1
    buf2 = reader.storage(None, 134217728)
    reader.tensor(buf2, (8192, 4096), is_leaf=True)  # dy_1
load_args._version = 0
mod = Repro()
"""
FULL_BYTES = 64 * 64 * 4096 * 4


def test_a_dump_is_planned(dump: str, tmp_path: Path, cli: Command) -> None:
    out = tmp_path / "order.json"
    found = cli.json("plan", dump, "--group", "0=64", "--headroom", "100%", "--out", str(out))
    assert (found["name"], found["nodes"], found["memory_model"]) == ("layer", 12, "runtime")
    assert found["step_us"] < found["original_step_us"]
    names = json.loads(out.read_text())
    assert names.index("gather") < names.index("mm_1") < names.index("full")


def test_the_device_and_the_network_set_the_times(dump: str, cli: Command) -> None:
    two_matmuls_us = 2 * 2 * 8192 * 4096 * 4096 / 594e12 * 1e6
    model, group = model_of(read_cluster("dgx-h100")), Group(64, intra_node=False, nodes=8)
    ops = ("all_gather_into_tensor", "reduce_scatter_tensor")
    collectives_us = sum(model.collective_us(Collective(op, FULL_BYTES, group)) for op in ops)
    given = ("--group", "0=64", "--no-contention")
    found = cli.json("plan", dump, *given)
    assert found["original_step_us"] == pytest.approx(two_matmuls_us + collectives_us)
    slower = cli.json("plan", dump, *given, "--comm-scale", "4")
    assert slower["original_step_us"] == pytest.approx(two_matmuls_us + 4 * collectives_us)
    assert cli.json("plan", dump, *given, "--device", "A100")["original_step_us"] > found["original_step_us"]


def test_ranks_tell_whether_a_group_fits_a_node(dump: str, cli: Command) -> None:
    text = DUMP.replace("64, '0'", "8, '0'")
    Path(dump).write_text(text)
    inside = cli.json("plan", dump, "--group", "0=0,1,2,3,4,5,6,7")["original_step_us"]
    across = cli.json("plan", dump, "--group", "0=0,8,16,24,32,40,48,56")["original_step_us"]
    assert cli.json("plan", dump, "--group", "0=8")["original_step_us"] == inside < across


def test_a_dump_is_lifted_in_the_memory_model_asked_for(dump: str, cli: Command) -> None:
    runtime = cli.json("plan", dump, "--group", "0=64")
    tracker = cli.json("plan", dump, "--group", "0=64", "--memory-model", "tracker")
    assert (runtime["memory_model"], tracker["memory_model"]) == ("runtime", "tracker")
    assert runtime["original_peak_bytes"] != tracker["original_peak_bytes"]


def test_a_dump_is_explained(dump: str, cli: Command) -> None:
    assert cli.out("explain", dump, "scatter", "--group", "0=64").startswith(
        "scatter: reduce_scatter_tensor on group FSDP 0 of 64, 64.0 MiB, "
    )


def test_guesses_are_told(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    load_dump = dumps.load_dump
    with patch.object(
        dumps, "load_dump", lambda *a, **k: replace(load_dump(*a, **k), notes=("a size, taken as 8192",))
    ):
        assert main(["plan", dump, "--group", "0=64"]) == 0
    sizes, *groups = capsys.readouterr().err.splitlines()
    assert sizes == "overlap-sched: note: a size, taken as 8192"
    assert groups == [
        "overlap-sched: note: process group '0' (64 ranks): its ranks are not known, assumed on 8 nodes, 8 ranks on "
        "each (taken as neighbours, 8 to a node); say otherwise with --group 0=RANK,RANK,... or --mesh NAME=SIZE,...",
        "overlap-sched: note: collectives are priced for dgx-h100, as nothing says where the graph runs: 8 ranks per "
        "node, compute slower beside collectives (--no-contention: not slower); say otherwise with --cluster "
        "FILE_OR_NAME",
    ]


SIZES = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[s0, 1024][1024, 1]cuda:0"):
        scaled: "f32[s0, 1024][1024, 1]cuda:0" = torch.ops.my_cli_kernels.scale.default(x)
        return (scaled,)
"""


def test_sizes_and_packages_that_the_graph_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command) -> None:
    path = tmp_path / "readable.txt"
    path.write_text(SIZES)
    (tmp_path / "my_cli_kernels.py").write_text(
        "import torch\n@torch.library.custom_op('my_cli_kernels::scale', mutates_args=())\n"
        "def scale(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
        "@scale.register_fake\ndef _(x):\n    return torch.empty_like(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = cli.json("plan", str(path), "--size", "s0=512", "--import", "my_cli_kernels")
    assert found["original_peak_bytes"] == 2 * 512 * 1024 * 4
    assert cli.json("plan", str(path), "--size", "s0=64")["original_peak_bytes"] == 2 * 64 * 1024 * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--import no_such_package", "--import no_such_package: it cannot be imported (No module named 'no_such_pack"),
        ("--import my_program", "--import my_program: importing it ends the program (sys.exit)"),
        ("--size u0=many", "--size: 'u0=many' is not NAME=N"),
        ("--group fsdp=64", "process group 'fsdp' is given (--group fsdp=64 on the command line), but the dump does"),
        ("--size u0=64", "a size is given for 'u0' (--size u0=64 on the command line), but no symbol or node has that"),
    ],
)
def test_what_is_not_there_is_named(
    options: str, said: str, dump: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    (tmp_path / "my_program.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert said in cli.refused("plan", dump, "--group", "0=64", *options.split())


def test_a_statement_that_is_not_understood_and_an_interrupt(
    dump: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    (tmp_path / "my_cli_interrupted.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["plan", dump, "--import", "my_cli_interrupted"]) == 130
    Path(dump).write_text(DUMP.replace("return (mm, grad)", "print(mm)\n        return (mm, grad)"))
    assert "layer.py, line 15" in cli.refused("plan", dump, "--group", "0=64")


def test_a_dump_above_the_limits(dump: str, cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", dump, "--group", "0=64", "--max-nodes", "5"]) == 2
    assert "node 'mm' (`mm = torch.ops.aten.mm.default(dy_1, t)`)" not in capsys.readouterr().err
    assert cli.refused("plan", dump, "--group", "0=64", "--max-input-bytes", "100") == (
        f"{dump}: has more than 100 bytes, which is the limit. "
        "Raise the limit (--max-input-bytes on the command line) if the file is meant to be that large."
    )


def test_a_dump_is_saved_redacted_and_plans_alike(dump: str, tmp_path: Path, cli: Command) -> None:
    saved = str(tmp_path / "saved.json.gz")
    from_dump = cli.json("plan", dump, "--group", "0=64", "--save-problem", saved, "--redact")
    from_problem = cli.json("plan", saved)
    different = {key for key in from_dump if from_dump[key] != from_problem[key]}
    assert different <= {"name", "schedule_s", "prices"}
    assert from_problem["name"] == "redacted"
