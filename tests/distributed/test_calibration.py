"""``calibrate``: what is measured, on real ranks and on stand-ins; and what a user is told."""

from argparse import Namespace
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.cli import calibrate
from overlap_sched.cli.command import main
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.table import COPY, KINDS
from overlap_sched.distributed import calibration as measuring
from overlap_sched.distributed.calibration import (
    Division,
    Grid,
    Machine,
    WantedCollective,
    calls_in,
    calls_in_grid,
    make_run,
)
from overlap_sched.errors import CostError, DumpGroupError
from overlap_sched.fx import lift
from tests.support.fx_graphs import gather, trace, wait
from tests.support.inputs import DUMP
from tests.support.ranks import run_ranks

CPU = torch.device("cpu")
ALONE = Machine(CPU)
SMALL = Grid(((8, 16, 32),), ((1, 2, 8, 4),), (4096,))


def test_divisions():
    assert Division(4, 2).groups(8) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert Division(2, 2).groups(8) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [Division(4, stride).nodes(Machine(CPU, 0, 8, 4)) for stride in (1, 2)] == [1, 2]
    assert Division(8).nodes(Machine(CPU, 0, 8, 2)) == 4
    with pytest.raises(CostError, match=r"8 ranks .* groups of 4 with stride 3: .* Give another --group SIZE"):
        Division(4, 3).groups(8)
    assert measuring.default_divisions(16, 8) == [Division(16), Division(8), Division(2, 8)]
    assert measuring.default_divisions(8, 8) == [Division(8)]
    assert measuring.default_divisions(4, 1) == [Division(4)]
    assert measuring.default_divisions(1, 1) == measuring.default_divisions(1, 8) == []


def test_sizes():
    assert measuring.sizes_between(4096, 2**20) == [4096, 16384, 65536, 262144, 2**20]
    assert measuring.sizes_between(10, 100) == [10, 40, 100]


def test_the_grid_is_priced_as_the_scheduler_prices_graphs_and_runs():
    calls = calls_in_grid(SMALL, torch.float32, CPU)
    found = {call.kernel[:2]: call.kernel[2:4] for call in calls}
    moved = 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert found["aten.mm.default", "float32[8,16] float32[16,32]"] == (2 * 8 * 16 * 32, moved)
    assert found[COPY, "uint8[4096]"] == (0, 8192)
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert [op.split(".")[1] for op, _ in found] == ["mm", attention, f"{attention}_backward", "clone"]
    for call in [*calls, *calls_in_grid(SMALL, torch.bfloat16, CPU)]:
        make_run(call, CPU)()


def test_of_a_graph_each_shape_once_with_its_strides():
    def step(x, w):
        full = wait(gather(w))
        return (x @ full.t()) @ full, x @ full.t(), x.relu()

    found = calls_in(lift(trace(step, (8, 16), (4, 16))))
    assert [call.kernel[:2] for call in found] == [
        ("aten.mm.default", "float32[8,16] float32[16,8](1,16)"),
        ("aten.mm.default", "float32[8,8] float32[8,16]"),
    ]
    for call in found:
        assert make_run(call, CPU)().shape[0] == 8
    gm = trace(lambda x, w: torch.ops.aten.baddbmm.default(w, x, x, alpha=2), (2, 4, 4), (2, 4, 4))
    (call,) = calls_in(lift(gm))
    assert call.kwargs == {"alpha": 2}
    assert make_run(call, CPU)().shape == (2, 4, 4)


def test_the_last_rank_to_come_counts():
    class TwoRanks(Machine):
        def everyone(self, own):
            if isinstance(own, float):
                return [own, own]
            patterns = ((5.0, 9.0, 2.0) * 99, (4.0, 9.5, 7.0) * 99)
            return [[x._replace(time_us=us) for x, us in zip(own, each, strict=False)] for each in patterns]

        def meet(self):
            pass

    seen = []
    machine = TwoRanks(CPU, 0, 2, 2)
    timing = measuring.time_together(machine, lambda: seen.append("begin"), lambda _: seen.append("end"))
    assert timing.time_us == pytest.approx(4.9)  # of 4, 9 and 2, again and again, the ten that begin with 4
    assert seen[:4] == ["begin", "end"] * 2
    assert len(seen) // 2 >= 3 + 7  # warm-ups and repetitions
    assert measuring.time_together(machine, lambda: None, lambda _: None, max).time_us == 9.0
    (copy,) = calls_in_grid(Grid((), (), (4096,)), torch.float32, CPU)
    assert 4.0 < measuring.time_kernel(machine, copy).time_us < 9.0  # of all six


def test_both_modes_count_in_a_mean_and_a_disturbance_does_not():
    tens = [[0.5] * 7 + [4.0] * 3, [50.0] * 10, [0.5] * 8 + [4.0] * 2, [0.5] * 6 + [4.0] * 4, [70.0] * 10]
    values = [value for one in tens for value in one]
    assert measuring.steady_mean(values) == pytest.approx(0.6 * 0.5 + 0.4 * 4.0)  # of five tens the third
    assert measuring.steady_mean([*values, 0.0]) == measuring.steady_mean(values)  # no ten of its own
    assert measuring.steady_mean([1.0] * 20 + [4.0]) == pytest.approx(24 / 21)


def test_products_instead_of_a_barrier():
    assert measuring.products_of(ALONE, 50.0).args[0] >= 1  # so many
    seen = []
    timing = measuring.time_together(
        ALONE, lambda: seen.append("begin"), lambda _: seen.append("end"), before=lambda: seen.append(5)
    )
    assert 0 < timing.launch_us < timing.time_us > timing.finish_us > 0
    assert seen[:9] == [*["begin", "end"] * 3, 5, "begin", "end"]
    assert seen.count(5) == seen.count("end") - 3


def test_each_kernel_is_told_and_measured_or_said_why_not():
    def unsupported(*_):
        raise NotImplementedError("no kernel\nfor this")

    first, second, *rest = calls_in_grid(SMALL, torch.float32, CPU)
    told = []
    tables, failed = measuring.measure(
        ALONE, [], [first._replace(target=unsupported), second, second, *rest], told.append
    )
    assert failed == ["aten.mm.default float32[8,16] float32[16,32]: no kernel for this"]
    assert len(tables.kernels) == 3
    assert all(one.time_us > 0 for one in tables.kernels)
    assert [one.partition(":")[0] for one in told] == [f"measuring {k} of 4" for k in (1, 2, 3, 4)]
    with pytest.raises(ZeroDivisionError):  # a fault of ours is not hidden
        measuring.measure(ALONE, [], [first._replace(target=lambda *_: 1 / 0)], print)


def test_the_collectives_of_a_problem():
    eight, two = Division(8), Division(2)
    kinds = ("all_gather", "reduce_scatter")
    assert measuring.collectives_of(EXAMPLE, [two, eight]) == [
        WantedCollective(kind, eight, 8 * 2**20) for kind in kinds
    ]
    assert measuring.collectives_of(EXAMPLE, [two]) == []
    assert [WantedCollective("all_gather", eight, nbytes).elements for nbytes in (0, 100, 4096)] == [8, 24, 1024]


def test_without_torchrun(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["calibrate", "--out", str(tmp_path / "c.toml")]) == 2
    assert "torchrun --nproc-per-node N -m overlap_sched calibrate --out" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpus_that_are_not_there(tmp_path, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["calibrate", "--out", str(tmp_path / "c.toml"), "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert "needs 2 GPUs" in said
    assert "use --device cpu" in said


@pytest.mark.parametrize("given", [("--group", "0"), ("--group", "2/"), ("--bytes", "4KiB"), ("--bytes", "4MiB..4KiB")])
def test_wrong_usage(given, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "--out", str(tmp_path / "c.toml"), *given])
    assert f"'{given[1]}' is not " in capsys.readouterr().err


def requests(machine, *graphs):
    command = Namespace(graph=[*map(str, graphs)], group=[], bytes=(4096, 4096), dtype="bfloat16")
    return calibrate.requests_of(command, machine, lambda text: None)


def test_a_dump_that_does_not_say_how_large_its_groups_are(tmp_path):
    dump = tmp_path / "layer.py"
    unknown = DUMP.replace(
        "all_gather_into_tensor.default(shard_1, 64, '0')", "all_reduce.default(shard_1, 'sum', '0')"
    )
    known = "reduce_scatter_tensor.default(mm_1, 'sum', 64, '0')"
    dump.write_text(unknown.replace(known, "all_reduce.default(mm_1, 'sum', '0')"))
    with pytest.raises(DumpGroupError, match=r"'0' is not known.* --group NAME=SIZE --save-problem OUT\.json"):
        requests(ALONE, dump)


def test_a_dump_has_shapes_and_a_problem_file_has_sizes_alone(tmp_path):
    dump, problem = tmp_path / "layer.py", tmp_path / "problem.json"
    dump.write_text(DUMP)
    write_problem(EXAMPLE, problem)
    eight = replace(ALONE, size=8, ranks_per_node=8)
    copies = len(measuring.CPU_GRID.copies)
    collectives, calls = requests(eight, dump)
    assert [call.kernel[:2] for call in calls[:2]] == [
        ("aten.mm.default", "float32[8192,4096] float32[4096,4096](1,4096)"),
        ("aten.mm.default", "float32[4096,8192](1,4096) float32[8192,4096]"),
    ]
    assert len(calls) == 2 + copies
    assert collectives == [WantedCollective(kind, Division(8), 4096) for kind in KINDS]  # its groups have 64 ranks
    collectives, calls = requests(eight, problem)
    assert {one.bytes for one in collectives} == {4096, 8 * 2**20}
    assert len(calls) == copies
    assert len(requests(eight)[1]) > 2 * copies  # the grid


@pytest.mark.slow
def test_two_ranks_measure(tmp_path):
    out, problem = tmp_path / "cluster.toml", tmp_path / "problem.json"
    write_problem(EXAMPLE, problem)
    command = ("calibrate", "--out", out, "--device", "cpu", "--bytes", "4KiB..64KiB", "--graph", problem)
    where = {"LOCAL_WORLD_SIZE": "2"}
    said = run_ranks("tests.support.calibration_ranks", *command, ranks=2, limit_s=200, **where)
    cluster = read_cluster(out)
    assert (cluster.device.name, cluster.ranks_per_node, cluster.library) == ("cpu", 2, "formula")
    assert {(one.kind, one.bytes) for one in cluster.tables.collectives} == {
        (kind, nbytes) for kind in KINDS for nbytes in (4096, 16384, 65536)
    }
    assert all(one.launch_us > 0 and one.time_us > 0 for one in cluster.tables.collectives)
    assert {one.op for one in cluster.tables.kernels} == {COPY}  # a problem file has no shapes
    assert said.count("measured\n") == 1  # rank 0 alone speaks
