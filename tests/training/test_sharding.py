"""Sharding and the model by themselves: one process, nothing compiled."""

import math

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from llama_repro.capture.parallelism import Ranks, fake_world
from llama_repro.training.net import Llama, rotations
from llama_repro.training.sharding import (
    TENSOR_PARALLEL,
    Place,
    first_value,
    local_shards,
    shard_,
    tensor_parallel_part,
)
from llama_repro.training.sizes import SIZES, sized
from llama_repro.training.world import degrees, place_in, world_of
from overlap_sched.errors import OptionsError
from tests.support.lockstep import reference_loss


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with world_of("cpu") as world:
        yield place_in(world, "fsdp", 1, 1)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    "name", ["embedding", "blocks.0.wq", "blocks.0.wo", "blocks.1.w1", "blocks.1.w2", "norm.weight"]
)
def test_tensor_parallel_parts_together_are_the_parameter(name, tp):
    whole = torch.arange(16.0) if name == "norm.weight" else torch.arange(16.0 * 32).reshape(16, 32)
    ranks = Ranks("tp", tp) if tp > 1 else None
    parts = [tensor_parallel_part(whole, name, Place(None, None, ranks, 0, i)) for i in range(tp)]
    divided = TENSOR_PARALLEL.get(name.split(".")[-1])
    assert torch.equal(whole if divided is None else torch.cat(parts, divided), whole)
    assert {part.numel() for part in parts} == {whole.numel() // (1 if divided is None else tp)}


def test_all_rows_together_are_the_parameter(monkeypatch):
    config = sized("tiny", 2, 1)
    shards = []
    for rank in range(2):
        with fake_world(2), monkeypatch.context() as patched:
            mesh = init_device_mesh("cpu", (2,))
            patched.setattr(DeviceMesh, "get_local_rank", lambda *_, rank=rank: rank)
            model = Llama(config, None, torch.float32)
            shard_(model, config, Place(mesh, mesh), torch.float32, 0, torch.device("cpu"))
            shards.append(dict(local_shards(model)))
    for name in ("embedding", "blocks.0.wo", "blocks.1.ffn_norm.weight"):
        whole = torch.cat([mine[name] for mine in shards])
        hashed = name if "." in name else f".{name}"
        assert torch.equal(whole, first_value(hashed, tuple(whole.shape), 0))


def test_first_values_depend_on_name_and_seed_alone():
    assert torch.equal(first_value("a", (4, 4), 0), first_value("a", (4, 4), 0))
    assert not torch.equal(first_value("a", (4, 4), 0), first_value("b", (4, 4), 0))
    assert not torch.equal(first_value("a", (4, 4), 0), first_value("a", (4, 4), 1))
    assert torch.equal(first_value("norm", (4,), 3), torch.ones(4))


def test_the_unsharded_model_is_an_independent_llama(alone):
    config = sized("tiny", 1, 1)
    model = Llama(config, None, torch.float32)
    shard_(model, config, alone, torch.float32, 0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    tokens, labels = torch.randint(config.vocabulary, (2, config.sequence, config.batch), generator=generator)
    loss = model(tokens, labels, *rotations(config))
    loss.backward()

    names = {name: name.removeprefix("blocks.").removesuffix(".weight") for name, _ in model.named_parameters()}
    weights = {names[name]: shard.clone().requires_grad_() for name, shard in local_shards(model)}
    reference = reference_loss(config, weights, tokens.t(), labels.t())
    reference.backward()
    torch.testing.assert_close(loss, reference)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.to_local(), weights[names[name]].grad)
    assert math.log(config.vocabulary) - 0.5 < loss.item() < math.log(config.vocabulary) + 0.5


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: sized("huge", 1, 1), "model is 'huge'; it is one of tiny, short, small, 125m, 1b, 3b, 8b."),
        (lambda: sized("tiny", 3, 1), "hidden width 128 is not divisible by 3. Use 1, 2, 4 or 8 of them, or another"),
        (lambda: sized("tiny", 1, 8), "key/value heads 4 is not divisible by 8"),
        (lambda: degrees("2d", 3, 2), "Start a multiple of 2 ranks, or choose --tp among the divisors of 3."),
    ],
)
def test_what_cannot_be_divided_is_told(ask, said):
    assert all(sized(name, fsdp, 1).world == fsdp for name in SIZES for fsdp in (1, 2, 4, 8))
    assert degrees("fsdp", 6, 4) == (6, 1)
    assert degrees("2d", 8, 2) == (4, 2)
    with pytest.raises(OptionsError) as odd:
        ask()
    assert said in str(odd.value)
