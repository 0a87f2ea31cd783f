"""Sharding and the model by themselves: one process, nothing compiled."""

import math

import pytest
import torch

from llama_repro.capture.parallelism import Ranks
from llama_repro.training.net import Llama, rotations
from llama_repro.training.sharding import TENSOR_PARALLEL, Place, first_value, ranks_of, shard_, shard_of
from llama_repro.training.sizes import SIZES, sized
from llama_repro.training.world import degrees
from overlap_sched.errors import OptionsError
from tests.support.reference_model import reference_loss


def places(fsdp, tp):
    world, parts = Ranks("world", fsdp * tp), Ranks("tp", tp) if tp > 1 else None
    return [Place(world, Ranks("fsdp", fsdp), parts, i, j) for i in range(fsdp) for j in range(tp)]


def joined(name, shards, fsdp, tp):
    """The whole parameter from the shards of all ranks, in the order of `places`."""
    if name not in TENSOR_PARALLEL:
        return torch.cat(shards)
    parts = [torch.cat(shards[j::tp]) for j in range(tp)]
    return torch.cat(parts, TENSOR_PARALLEL[name])


@pytest.mark.parametrize(("fsdp", "tp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (2, 4)])
@pytest.mark.parametrize("name", ["embedding", "wq", "wo", "w1", "w2", "norm"])
def test_all_shards_together_are_the_parameter(name, fsdp, tp):
    whole = torch.arange(16.0) if name == "norm" else torch.arange(16.0 * 32).reshape(16, 32)
    shards = [shard_of(whole, name, place) for place in places(fsdp, tp)]
    assert {shard.numel() for shard in shards} == {whole.numel() // (fsdp * tp)}
    assert torch.equal(joined(name, shards, fsdp, tp), whole)


def test_what_tensor_parallel_ranks_share_is_sharded_over_all_ranks():
    place = places(2, 2)[0]
    assert ranks_of("wq", place).size == 2
    assert ranks_of("norm", place).size == ranks_of("head", place).size == 4


def test_first_values_depend_on_name_and_seed_alone():
    assert torch.equal(first_value("a", (4, 4), 0), first_value("a", (4, 4), 0))
    assert not torch.equal(first_value("a", (4, 4), 0), first_value("b", (4, 4), 0))
    assert not torch.equal(first_value("a", (4, 4), 0), first_value("a", (4, 4), 1))
    assert torch.equal(first_value("norm", (4,), 3), torch.ones(4))


def test_the_unsharded_model_is_an_independent_llama():
    config = sized("tiny", 1, 1)
    model = Llama(config, None, torch.float32)
    shard_(model, config, places(1, 1)[0], torch.float32, 0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    tokens, labels = torch.randint(config.vocabulary, (2, config.sequence, config.batch), generator=generator)
    loss = model(tokens, labels, *rotations(config))
    loss.backward()

    names = {name: name.removeprefix("blocks.") for name, _ in model.named_parameters()}
    weights = {names[name]: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    reference = reference_loss(config, weights, tokens.t(), labels.t())
    reference.backward()
    torch.testing.assert_close(loss, reference)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[names[name]].grad)
    assert math.log(config.vocabulary) - 0.5 < loss.item() < math.log(config.vocabulary) + 0.5


@pytest.mark.parametrize("name", SIZES)
def test_every_size_can_be_sharded_in_the_usual_ways(name):
    for fsdp, tp in ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2)):
        assert sized(name, fsdp, tp).world == fsdp * tp


def test_the_largest_has_eight_billion_parameters():
    config = SIZES["8b"]
    rows = 2 * config.hidden + 2 * config.kv_heads * config.head_dim + 3 * config.ffn
    assert round((config.layers * rows * config.hidden + 2 * config.vocabulary * config.hidden) / 1e9) == 8


def test_wrong_sizes_are_told():
    with pytest.raises(OptionsError) as unknown:
        sized("huge", 1, 1)
    assert str(unknown.value) == "model is 'huge'; it is one of tiny, small, 125m, 1b, 3b, 8b."
    with pytest.raises(OptionsError) as odd:
        sized("tiny", 3, 1)
    assert str(odd.value) == (
        "model 'tiny' cannot be sharded over 3 ranks (3 x 1 tensor parallel): hidden width 128 is not divisible by 3. "
        "Use 1, 2, 4 or 8 of them, or another model."
    )
    with pytest.raises(OptionsError) as wide:
        sized("tiny", 1, 8)
    assert "key/value heads 4 is not divisible by 8" in str(wide.value)


def test_a_world_that_cannot_be_divided_is_told():
    assert degrees("raw", 6, 4) == (6, 1)
    assert degrees("2d", 8, 2) == (4, 2)
    with pytest.raises(OptionsError) as odd:
        degrees("2d", 3, 2)
    assert str(odd.value) == (
        "a world of 3 ranks cannot be divided into tensor-parallel groups of 2 (--tp). "
        "Start a multiple of 2 ranks, or choose --tp among the divisors of 3."
    )
