"""Checkpoints, in a world of one rank and without compiling; and what the command says of what it cannot do.

What is measured of a machine, and what the model makes of it.

The comparison's table and verdict, from runs written down by hand.
"""

import copy
import shutil

import pytest
import torch

from llama_repro.errors import CheckpointError
from llama_repro.training import calibrate
from llama_repro.training.arguments import parse
from llama_repro.training.calibrate import device_of, measured_model
from llama_repro.training.checkpoint import resume, save
from llama_repro.training.compare import same, table_of
from llama_repro.training.data import data_of, part_of
from llama_repro.training.loop import main
from llama_repro.training.sizes import sized
from llama_repro.training.slow_network import with_slow_links
from llama_repro.training.trainer import identity, make_trainer
from llama_repro.training.world import world_of
from overlap_sched.cost import H100, Collective, Compute, Roofline
from overlap_sched.cost.table import CollectiveTime, KernelTime, TableModel, Tables
from overlap_sched.distributed.calibration import Grid
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options
from overlap_sched.problem import Group

CONFIG = sized("tiny", 1, 1, batch=3, sequence=20)


@pytest.mark.parametrize("source", ["synthetic", "file"])
def test_a_batch_depends_on_its_number_alone(source, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)) * 4)
    data = data_of(source if source == "synthetic" else str(path), CONFIG, 7)
    first, again, other = data.batch(5), data.batch(5), data.batch(6)
    assert first.tokens.shape == first.labels.shape == (20, 3)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert torch.equal(first.tokens[1:], first.labels[:-1])
    parts = [part_of(first, rank, 4) for rank in range(4)]  # of a sequence: together they are it
    assert torch.equal(torch.cat([part.tokens for part in parts]), first.tokens)
    assert torch.equal(torch.cat([part.labels for part in parts]), first.labels)


def test_files_that_cannot_be_used_are_told(tmp_path):
    with pytest.raises(OptionsError, match=r"none: cannot be read \(No such file or directory\)"):
        data_of(str(tmp_path / "none"), CONFIG, 0)
    short = tmp_path / "short"
    short.write_bytes(b"x" * 20)
    with pytest.raises(OptionsError, match=r"20 bytes are too few for sequences of 20 .* a shorter --sequence"):
        data_of(str(short), CONFIG, 0)


@pytest.fixture
def trainer(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)

    def make(*given):
        arguments = parse(["--device", "cpu", *given])
        made = make_trainer(arguments, world)
        return made, identity(arguments, made)

    with world_of("cpu") as world:
        yield make


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_by_bit(trainer, tmp_path):
    whole, config = trainer()
    losses = [whole.step(i) for i in range(2)]
    save(tmp_path, 2, config, whole.model, whole.optimizer)
    losses += [whole.step(i) for i in range(2, 4)]
    resumed, config = trainer()
    assert resume(tmp_path, config, resumed.model, resumed.optimizer) == 2
    assert [resumed.step(i) for i in range(2, 4)] == losses[2:]
    assert resumed.digests() == whole.digests()
    assert losses[3] < losses[0]


def test_two_checkpoints_are_kept_and_unfinished_ones_are_not_seen(trainer, tmp_path):
    one, config = trainer()
    assert resume(tmp_path / "none", config, one.model, one.optimizer) == 0
    for step in (1, 2, 3):
        save(tmp_path, step, config, one.model, one.optimizer)
    shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00000009.partial")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003", "step-00000009.partial"]
    assert resume(tmp_path, config, one.model, one.optimizer) == 3


def test_checkpoints_that_are_damaged_or_of_another_configuration_are_told(trainer, tmp_path):
    one, config = trainer()
    path = save(tmp_path, 1, config, one.model, one.optimizer)

    def told(folder, by=(one, config)):
        with pytest.raises(CheckpointError) as error:
            resume(folder, by[1], by[0].model, by[0].optimizer)
        return str(error.value)

    text = told(tmp_path, trainer("--seed", "3", "--dtype", "fp32"))
    assert text.startswith(f"{path} is a checkpoint of another configuration: dtype was 'bf16' and is")
    assert text.endswith("or name another --checkpoint folder.")
    (path / "rank-0.pt").write_bytes(b"nothing")
    text = told(tmp_path)
    assert text.startswith(f"{path / 'rank-0.pt'} cannot be read (UnpicklingError). Remove {path}")
    (path / "config.json").write_text("{")
    assert "config.json cannot be read" in told(tmp_path)
    (tmp_path / "file").write_text("")
    assert "is a file. Name a folder" in told(tmp_path / "file")


@pytest.mark.slow
def test_accumulated_micro_batches_are_one_large_batch(trainer):
    accumulated, _ = trainer("--accumulate", "2", "--dtype", "fp32")
    large, _ = trainer("--batch", "4", "--dtype", "fp32")
    halves = [accumulated.data.batch(i) for i in range(6)]
    large.data.batch = lambda number: type(halves[0])(
        *(torch.cat(pair, 1) for pair in zip(halves[2 * number], halves[2 * number + 1], strict=True))
    )
    for number in range(3):
        assert accumulated.step(number) == pytest.approx(large.step(number), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--model", "huge"), "train: model is 'huge'; it is one of tiny, short, small, 125m, 1b, 3b, 8b."),
        (("--sharding", "2d", "--tp", "2"), "1 ranks cannot be divided into tensor-parallel groups of 2 (--tp)"),
        (("--json", "none/out.json"), "there is no folder"),
        (("--headroom", "much"), "headroom is 'much'"),
        (("--steps", "0"), "--steps is 0; it is 1 or more"),
        *((("--slow-network", wrong), "a bandwidth in GB/s, above 0.") for wrong in ("0", "nan", "inf")),
        (("--slow-network", "1", "--slow-latency", "nan"), "a latency in microseconds, 0 or more."),
        (("--slow-latency", "5"), "that of the link that --slow-network emulates"),
        (("--base", "memory", "--budget", "profile"), "base is 'memory' and budget is 'profile'"),
    ],
)
def test_the_command_says_what_is_wrong(monkeypatch, capsys, given, said):
    monkeypatch.delenv("RANK", raising=False)
    assert main(list(given)) == 2
    assert said in capsys.readouterr().err


def test_the_scheduler_is_told_by_the_names_of_its_options():
    assert parse([]).options == Options(headroom="0")
    told = {
        "headroom": "1GiB", "budget": "peak", "memory_model": "tracker", "preserve_collective_order": "all",
        "base": "memory-peak", "effort": 1, "strict": True, "agreement": "none",
    }  # fmt: skip
    given = [f"--{name.replace('_', '-')}={value}" for name, value in told.items() if name != "strict"]
    assert parse([*given, "--strict"]).options == Options(**told)


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIR = Group(2, True)


def test_the_slow_network_is_one_for_all_operators():
    gathers = (CollectiveTime("all_gather", 2, 1, 10**6, 5.0, 1.0),)
    model = TableModel(Tables(gathers, (KernelTime("slow", "", 10**9, 0, 1000.0),)), on_host=True)
    slow = with_slow_links(model, 1e9)
    for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "other"):
        assert slow.collective_us(Collective(op, 2 * 10**6, PAIR)) == pytest.approx(1300.0)
        assert slow.launch_us(Collective(op, 2 * 10**6, PAIR)) == 0.0
    assert slow.compute_us(Compute("slow", 10**9, 0)) == 1000.0
    across = Collective("all_gather_into_tensor", 2 * 10**6, Group(2, False))
    assert with_slow_links(Roofline(), 1e9).collective_us(across) == pytest.approx(1300.0)
    assert with_slow_links(Roofline(), 1e9, 20_000.0).collective_us(across) == pytest.approx(21_000.0)
    assert device_of(Roofline()) is device_of(TableModel(Tables())) is H100


@pytest.mark.slow
def test_a_rank_alone_measures_compute(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(calibrate, "_GRID", Grid(((64, 64, 64), (256, 256, 256)), ((1, 4, 64, 32),), (2**12, 2**20)))
    with world_of("cpu") as world:
        model = measured_model(world, torch.bfloat16)
    ops = {one.op for one in model.tables.kernels}
    assert {"aten.mm.default", "aten.clone.default", f"{ATTENTION}.default", f"{ATTENTION}_backward.default"} == ops
    assert model.tables.collectives == ()
    assert all(one.time_us > 0 for one in model.tables.kernels)
    device = device_of(model)
    assert all(1e6 < rate < 1e16 for rate in (device.flops_per_s, device.bytes_per_s))  # in units of one per second
    assert model.on_host


def run(**changed):
    figures = {"exposed_us": 10_000.0, "growth_bytes": 2**20, "matmuls_in_between": 0}
    graph = {"name": "forward 0/0", "used": figures, "schedule_s": 0.5}
    measured = {"kind": "forward", "matmuls_in_between": 3, "growth_bytes": 2**21, "with_copies_bytes": 3 * 2**20}
    whole = {"model": "tiny", "sharding": "fsdp", "ranks": 2, "dtype": "bf16", "accumulate": 2, "kernels": 7}
    whole |= {"losses": [(2.0).hex(), (1.5).hex()], "weights": ["a", "b"], "typical_step_s": 0.25, "compile_s": 3.0}
    whole |= {"network_us": [30_000.0, 25_000.0, 28_000.0], "peak_bytes": 2**22, "graphs": [graph]}
    whole["measured"] = {"graphs": [measured], "exposed_us": 26_000.0}
    return {**copy.deepcopy(whole), **changed}


def rows(runs):
    table = table_of(runs)
    cells = [list(column.cells) for column in table.columns]
    return {name: values for name, *values in zip(*cells, strict=True)}


def test_what_was_hidden_stands_next_to_what_should_be():
    ours = run(network_us=[30_000.0, 7_000.0, 9_000.0])
    ours["graphs"][0]["used"]["exposed_us"] = 1_000.0
    theirs = run(graphs=[], network_us=[30_000.0, 20_000.0, 20_000.0], losses=[(2.0).hex(), (1.25).hex()])
    found = rows({"none": run(), "overlap_sched": ours, "torch": theirs})
    assert found["exposed, predicted (ms)"] == ["20.00", "2.00", "-"]  # two micro batches
    assert found["exposed, measured (ms)"] == ["25.00", "7.00", "20.00"]
    assert found["waits, gloo and late ranks included (ms)"] == ["28.00", "9.00", "20.00"]
    assert found["hidden, predicted (ms)"] == ["-", "18.00", "-"]
    assert found["hidden, measured (ms)"] == ["-", "18.00", "5.00"]
    assert found["measured / predicted"] == ["-", "100%", "-"]
    assert found["bitwise as none"][1:] == ["2 of 2, weights equal", "1 of 2, weights equal"]
    assert found["peak above graph entry, measured"] == ["2.00, 0.00"] * 3
    assert found["the same with copies of the process group"] == ["3.00, 0.00"] * 3
    # losses and weights must be the same
    assert same(run(), run())
    assert not same(run(losses=[(2.0).hex(), (1.25).hex()]), run())
    assert not same(run(weights=["a", "c"]), run())
