"""Checkpoints, in a world of one rank and without compiling; and what the command says of what it cannot do."""

import json
import shutil

import pytest
import torch

from llama_repro.errors import CheckpointError
from llama_repro.training.arguments import parse
from llama_repro.training.checkpoint import resume, save
from llama_repro.training.loop import main
from llama_repro.training.trainer import identity, make_trainer
from llama_repro.training.world import world_of
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options


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


def test_without_a_checkpoint_training_starts_at_the_beginning(trainer, tmp_path):
    fresh, config = trainer()
    assert resume(tmp_path / "none", config, fresh.model, fresh.optimizer) == 0


def test_two_checkpoints_are_kept_and_unfinished_ones_are_not_seen(trainer, tmp_path):
    one, config = trainer()
    for step in (1, 2, 3):
        save(tmp_path, step, config, one.model, one.optimizer)
    shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00000009.partial")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003", "step-00000009.partial"]
    assert resume(tmp_path, config, one.model, one.optimizer) == 3


def test_a_checkpoint_of_another_configuration_is_refused(trainer, tmp_path):
    one, config = trainer()
    path = save(tmp_path, 1, config, one.model, one.optimizer)
    other, changed = trainer("--seed", "3", "--dtype", "fp32")
    with pytest.raises(CheckpointError) as error:
        resume(tmp_path, changed, other.model, other.optimizer)
    assert str(error.value) == (
        f"{path} is a checkpoint of another configuration: dtype was 'bf16' and is 'fp32'; seed was 0 and is 3. "
        "Start with the same arguments and ranks, or name another --checkpoint folder."
    )


def test_damaged_checkpoints_are_told(trainer, tmp_path):
    one, config = trainer()
    path = save(tmp_path, 1, config, one.model, one.optimizer)
    (path / "rank-0.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError) as damaged:
        resume(tmp_path, config, one.model, one.optimizer)
    assert str(damaged.value) == (
        f"{path / 'rank-0.pt'} cannot be read (UnpicklingError). Remove {path} to resume from the one before."
    )
    (path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        resume(tmp_path, config, one.model, one.optimizer)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"is a file\. Name a folder"):
        resume(tmp_path / "file", config, one.model, one.optimizer)


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


def test_the_command_says_what_is_wrong(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["--model", "huge"]) == 2
    assert capsys.readouterr().err == "train: model is 'huge'; it is one of tiny, short, small, 125m, 1b, 3b, 8b.\n"
    assert main(["--sharding", "2d", "--tp", "2"]) == 2
    assert "a world of 1 ranks cannot be divided into tensor-parallel groups of 2 (--tp)" in capsys.readouterr().err
    assert main(["--json", str(tmp_path / "none" / "out.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["--headroom", "much"]) == 2
    assert "headroom is 'much'" in capsys.readouterr().err
    with pytest.raises(OptionsError, match="--steps is 0; it is 1 or more"):
        parse(["--steps", "0"])


@pytest.mark.slow
def test_alone_it_trains_and_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    out = tmp_path / "out.json"
    assert main(["--steps", "3", "--scheduler", "none", "--json", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "no torchrun environment: a world of one rank, in which nothing is communicated." in said
    assert "step 3/3  loss" in said
    told = json.loads(out.read_text())
    assert [float.fromhex(loss) for loss in told["losses"]] == sorted(map(float.fromhex, told["losses"]), reverse=True)
    assert told["ranks"] == 1
    assert len(told["step_s"]) == 3


def test_the_scheduler_is_told_by_the_names_of_its_options():
    assert parse([]).options == Options(headroom="0")
    told = {
        "headroom": "1GiB", "budget": "peak", "memory_model": "tracker", "preserve_collective_order": "all",
        "base": "memory-peak", "effort": 1, "strict": True, "agreement": "none",
    }  # fmt: skip
    given = [f"--{name.replace('_', '-')}={value}" for name, value in told.items() if name != "strict"]
    assert parse([*given, "--strict"]).options == Options(**told)
    with pytest.raises(OptionsError, match=r"^base is 'memory' and budget is 'profile': an order with a lower peak is"):
        parse(["--base", "memory", "--budget", "profile"])
