"""``explain --costs`` and ``--fusion``."""

from pathlib import Path

import pytest

from overlap_sched import Kind, Node, Problem, write_problem
from tests.support.examples import Command, run

pytestmark = pytest.mark.usefixtures("plain_terminal")


def test_a_problem_file_has_its_own_times(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", problem, "--costs", "--top", "3", "--comm-scale", "2") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert " ".join(out.split()) == (
        "example: 10 nodes, compute 110.0 us, collectives 160.0 us (predicted) "
        "collective file 160.0 us 100.0 % in 2 compute file 110.0 us 100.0 % in 3 "
        "longest: time source bound by flops bytes node "
        "80.0 us file - - 8.0 MiB gather (all_gather_into_tensor on group fsdp) "
        "80.0 us file - - 8.0 MiB scatter (reduce_scatter_tensor on group fsdp) 50.0 us file - - 0 B mm (aten.mm)"
    )


def test_all_or_none_of_the_nodes(problem: str, cli: Command) -> None:
    assert len(cli.out("explain", problem, "--costs", "--all").splitlines()) == 5 + 5
    assert len(cli.out("explain", problem, "--costs", "--top", "0").splitlines()) == 3


@pytest.mark.parametrize(
    ("us", "found"), [(1e10, "2.8 hours"), (0.5, "500 ns")], ids=["seconds for microseconds", "the other way"]
)
@pytest.mark.parametrize("command", [("plan",), ("explain", "--costs")], ids=" ".join)
def test_odd_lengths_are_asked_about(
    us: float, found: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    write_problem(Problem("odd", (Node("mm", Kind.COMPUTE, time_us=us),), ()), path)
    assert run(command[0], str(path), *command[1:]) == 0
    assert capsys.readouterr().err == (
        f"overlap-sched: note: the original step takes {found}: are all times in microseconds, sizes in bytes, "
        "rates per second? `overlap-sched explain --costs` lists the longest nodes and where their times come from\n"
    )


DUMP = """\
import torch
class Repro(torch.nn.Module):
    def forward(self, shard_1, x_1):
        gather = torch.ops._c10d_functional.all_gather_into_tensor.default(shard_1, 64, '0');  shard_1 = None
        mul = torch.ops.aten.mul.Tensor(x_1, 2.0)
        relu = torch.ops.aten.relu.default(mul);  mul = None
        full = torch.ops._c10d_functional.wait_tensor.default(gather);  gather = None
        mm = torch.ops.aten.mm.default(relu, full);  relu = full = None
        return (mm,)

def load_args(reader):
    buf0 = reader.storage(None, 262144, device=device(type='cuda', index=0))
    reader.tensor(buf0, (16, 1024), dtype=torch.float32, is_leaf=True)  # shard_1
    buf1 = reader.storage(None, 33554432, device=device(type='cuda', index=0))
    reader.tensor(buf1, (8192, 1024), dtype=torch.float32, is_leaf=True)  # x_1
load_args._version = 0
mod = Repro()
"""


@pytest.fixture
def dump(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    path = tmp_path / "layer.py"
    path.write_text(DUMP.replace("262144", "65536"))
    return str(path)


def test_a_dump_is_priced_by_predicted_kernels(dump: str, cli: Command) -> None:
    assert cli.words("explain", dump, "--costs", "--group", "0=64") == (
        "layer: 8 nodes, compute 54.0 us, collectives 169.1 us (predicted) collective nccl 169.1 us 100.0 % in 1 "
        "compute roofline 28.9 us 53.6 % in 1 compute fusion 25.0 us 46.4 % in 1 "
        "longest: time source bound by flops bytes node "
        "169.1 us nccl latency - 4.0 MiB gather (all_gather_into_tensor on group 0) "
        "28.9 us roofline arithmetic 17.2 GFLOP 68.0 MiB mm (aten.mm.default) "
        "25.0 us fusion memory - 64.0 MiB relu (aten.relu.default), part of the kernel of relu"
    )
    plain = cli.json("explain", dump, "--costs", "--group", "0=64", "--fusion", "none")
    assert [cost["source"] for cost in plain["costs"]] == ["nccl"] + ["roofline"] * 3
    assert plain["compute_us"] == pytest.approx(54.0 + 25.0, abs=0.1)
