"""What ``shard`` makes of a model, and what it says of those that it cannot shard: a fake world, nothing compiled."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx

from llama_repro.capture.parallelism import fake_world
from overlap_sched.distributed import ShardedModule, shard
from overlap_sched.errors import ShardingError
from overlap_sched.sharding.gather import Place, layout_of, part_of, reduced
from tests.support.sharding_ranks import UNEVEN, WIDTH, Decoder, batch, decoder

RANKS = 4


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(RANKS):
        yield init_device_mesh("cpu", (RANKS,))


def square() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))


def tensor_parallel(model: Decoder, mesh: DeviceMesh) -> Decoder:
    plan = {"q_proj": ColwiseParallel(), "o_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.self_attn, mesh, plan)
    return model


def test_parameters_become_those_of_fully_shard(mesh: DeviceMesh) -> None:
    grid = square()
    for given in (mesh, grid, grid["a"]):
        ours, theirs = decoder(), decoder()
        for model in (ours, theirs) if given.ndim == 1 and given is not mesh else ():
            tensor_parallel(model, grid["b"])
        shard(ours, given)
        fully_shard(theirs, mesh=given)
        mine, reference = ours.state_dict(), theirs.state_dict()
        assert list(mine) == list(reference)
        for name, value in reference.items():
            assert type(mine[name]) is type(value)
            if not isinstance(value, DTensor):
                continue
            assert mine[name].placements == value.placements, name
            assert mine[name].device_mesh == value.device_mesh
            assert (mine[name].shape, mine[name].stride()) == (value.shape, value.stride())
            assert torch.equal(mine[name].to_local(), value.to_local())
        assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
        assert len(list(ours.parameters())) == len(list(theirs.parameters()))


def test_every_rank_has_the_rows_of_a_chunk(mesh: DeviceMesh) -> None:
    for rows in (3, 4, 5, 9):
        whole = nn.Parameter(torch.arange(3.0 * rows).reshape(rows, 3))
        place = Place.of(mesh, torch.device("cpu"))
        layout = layout_of(whole, place, MixedPrecisionPolicy())
        for rank, chunk in enumerate([*whole.chunk(RANKS), *[whole[:0]] * RANKS][:RANKS]):
            part = part_of(whole, replace(place, index=rank), layout)
            assert torch.equal(part.to_local(), chunk)
            assert part.shape == whole.shape


def test_in_a_forward_they_are_whole_and_outside_they_are_parts(mesh: DeviceMesh) -> None:
    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.weight)
            return super().forward(x)

    seen: list[Tensor] = []
    model = nn.Sequential(Looks(3, 5, bias=False))
    shard(model, mesh)
    model(torch.ones(2, 3)).sum().backward()
    assert not isinstance(seen[0], DTensor)
    assert seen[0].shape == (5, 3)
    assert isinstance(model[0].weight, nn.Parameter)
    assert model[0].weight.to_local().shape == (2, 3)
    assert model[0].weight.grad.placements == (Shard(0),)
    model[0](torch.ones(2, 3))  # by itself, as a checkpointed layer is in backward
    assert not isinstance(seen[1], DTensor)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(2, 7))
    assert isinstance(model[0].weight, DTensor)


def test_models_on_meta_are_filled_afterwards(mesh: DeviceMesh) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 5))
    shard(model, mesh)
    assert model[0].weight.to_local().is_meta
    model.to_empty(device="cpu")
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    assert torch.equal(model[0].weight.to_local(), torch.ones(2, 3))
    state = model.state_dict()
    model.load_state_dict({name: value * 2 for name, value in state.items()}, assign=True)
    assert torch.equal(model[0].weight.to_local(), torch.full((2, 3), 2.0))
    assert model(torch.ones(1, 3)).shape == (1, 5)


def test_the_classes_stay_what_they_were(mesh: DeviceMesh) -> None:
    model = decoder()
    shard(model)  # the default mesh is all ranks
    assert model.lm_head.weight.device_mesh.size() == RANKS
    assert isinstance(model, Decoder)
    assert isinstance(model, ShardedModule)
    assert not isinstance(model.lm_head, ShardedModule)
    assert isinstance(model.lm_head, nn.Linear)
    layers = model.model.layers
    assert type(layers[0].mlp.up_proj) is type(layers[1].mlp.up_proj)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokens, labels = batch(0, 0)
    assert list(copy.deepcopy(model)(tokens, labels=labels)) == ["loss", "logits"]


def test_inputs_and_outputs_are_cast_as_by_fully_shard(mesh: DeviceMesh) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, *, extra: dict[str, Any]) -> tuple[Any, ...]:
            return x.dtype, extra["y"][0].dtype, extra["n"].dtype, self.weight, {"out": x}

    given = {"y": [torch.ones(2)], "n": torch.ones(2, dtype=torch.int64)}
    for cast, inside in ((True, torch.bfloat16), (False, torch.float32)):
        policy = MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float64, cast_forward_inputs=cast)
        x, y, n, weight, out = shard(Nested(), mesh, mp_policy=policy)(torch.ones(2), extra=given)
        assert (x, y, n) == (inside, inside, torch.int64)
        assert weight.dtype == out["out"].dtype == torch.float64


def test_a_forward_replaced_on_the_module_is_one_too(mesh: DeviceMesh) -> None:
    model = nn.Linear(3, 4)
    plain = model.forward
    model.forward = lambda x: plain(x) + model.bias
    assert shard([model], mesh) == [model]  # several modules share a call
    assert model(torch.ones(1, 3)).shape == (1, 4)


def test_what_is_ignored_stays_and_lists_are_gathered(mesh: DeviceMesh) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 4))
    ignored = {model[0].bias, *model[1].parameters()}
    shard(model, mesh, ignored_params=ignored)
    assert isinstance(model[0].weight, DTensor)
    assert ignored <= set(model.parameters())
    assert model(torch.ones(2, 3))[0].shape == (2, 4)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.ones(4, 3), torch.ones(5, 3)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x @ weight.t() for weight in self.weights], 1)

    assert shard(Experts(), mesh)(torch.ones(2, 3)).shape == (2, 9)


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    """A world of one rank, in which gradients are what they are."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_each_gradient_is_reduced_once(alone: DeviceMesh) -> None:
    model = shard(nn.Sequential(nn.Linear(3, 2, bias=False)), alone)

    def backward() -> None:
        model(torch.ones(1, 3)).sum().backward()

    backward()
    for _ in range(2):
        model.set_requires_gradient_sync(False)  # also twice in a row
        backward()
    model.set_requires_gradient_sync(True)
    assert torch.equal(model[0].weight.grad.to_local(), torch.full((2, 3), 3.0))
    model.set_requires_gradient_sync(True)
    model.set_gradient_divide_factor(2.0)
    backward()
    assert torch.equal(model[0].weight.grad.to_local(), torch.full((2, 3), 3.5))
    with model.no_sync():
        backward()
        assert torch.equal(model[0].weight.grad.to_local(), torch.full((2, 3), 3.5))
    assert torch.equal(model[0].weight.grad.to_local(), torch.full((2, 3), 4.0))
    assert model[0].weight.grad.placements == (Shard(0),)


def told(*given: Any, **keywords: Any) -> str:
    with pytest.raises(ShardingError) as error:
        shard(*given, **keywords)
    return str(error.value)


def hooked(register: Any) -> nn.Module:
    model = nn.Linear(2, 2)
    register(model.bias, lambda *_: None)
    return model


def sharded_by_torch() -> nn.Module:
    fully_shard(model := nn.Sequential(nn.Linear(2, 2))[0])
    return nn.Sequential(model)


def scalar() -> nn.Module:
    model = nn.Module()
    model.temperature = nn.Parameter(torch.tensor(1.0))
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: shard(nn.Linear(2, 2)), "(ShardedLinear) is sharded already. Call shard once per module"),
        (sharded_by_torch, "0 (FSDPLinear) is sharded already, by fully_shard. Use one of the two"),
        (
            lambda: nn.Sequential(nn.GRU(2, 2)),
            "0 (GRU) reads its weights from a list of its own. Add its parameters to",
        ),
        (lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), "(DistributedDataParallel) holds whole"),
        (scalar, "temperature is a scalar, which has no rows to divide. Make it a tensor of one element."),
        (lambda: hooked(nn.Parameter.register_hook), "bias has a hook, which would stay"),
        (lambda: hooked(nn.Parameter.register_post_accumulate_grad_hook), "Register it after shard(model)."),
    ],
)
def test_models_that_cannot_be_sharded_are_told(mesh: DeviceMesh, make: Any, said: str) -> None:
    assert said in told(make(), mesh)


def test_shared_parameters_of_two_calls_are_told(mesh: DeviceMesh) -> None:
    model = decoder()
    shard(model.lm_head, mesh)
    before = model.model.embed_tokens.weight
    text = told(model, mesh)
    assert text.startswith("model.embed_tokens.weight is shared with a module that another call has sharded")
    assert text.endswith("shard([embedding, head]).")
    assert model.model.embed_tokens.weight is before
    assert before.shape == (UNEVEN[0], WIDTH)


@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("reshard_after_forward", 2, "(gather again in backward) or False (keep)."),
        ("offload_policy", CPUOffloadPolicy(), "Use torch's fully_shard for this model."),
        ("shard_placement_fn", lambda _: Shard(1), "Or add it to ignored_params."),
        ("ignored_params", nn.Linear(2, 2), "a set of parameters: set(model.head.parameters())."),
    ],
)
def test_arguments_that_are_not_supported_are_told(mesh: DeviceMesh, name: str, given: Any, remedy: str) -> None:
    model = nn.Linear(2, 2)
    text = told(model, mesh, **{name: given})
    assert name in text
    assert text.endswith(remedy)
    assert not isinstance(model.weight, DTensor)
    shard(model, mesh, offload_policy=OffloadPolicy(), shard_placement_fn=lambda _: None)


def test_meshes_that_do_not_fit_are_told(mesh: DeviceMesh) -> None:
    cube = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    text = told(nn.Linear(2, 2), cube)
    assert text.startswith("the mesh has 3 dimensions ('pp', 'dp', 'tp'); it takes one")
    assert text.endswith('of data parallelism: mesh["dp"], or mesh["replicate", "shard"].')


def made_late(model: nn.Module, old: Any) -> None:
    torch.optim.LBFGS(old.param_groups[0]["params"]).step(lambda: model(torch.ones(1, 2)).sum())


@pytest.mark.parametrize(
    "use",
    [
        lambda _, old: old.step(),
        lambda _, old: old.zero_grad(),
        lambda _, old: torch.nn.utils.clip_grad_norm_(old.param_groups[0]["params"], 1.0),
        lambda _, old: torch.compile(old.step, backend="eager")(),
        made_late,
    ],
)
def test_an_optimizer_made_before_is_an_error(mesh: DeviceMesh, use: Any) -> None:
    model, grid = nn.Sequential(nn.Linear(2, 2), decoder()), square()
    tensor_parallel(model[1], grid["b"])
    old = torch.optim.AdamW(model.parameters())
    shard(model, grid["a"])
    model[0](torch.ones(1, 2)).sum().backward()
    with pytest.raises(Exception, match=r"shard\(\) has replaced .*: an optimizer made before would train nothing"):
        use(model[0], old)
    new = torch.optim.AdamW(model.parameters())
    new.step()
    new.zero_grad()


@pytest.mark.parametrize(
    ("factor", "divisions"),
    [(None, [2.0, 2.0]), (16.0, [4.0, 4.0]), (8.0, [4.0, 2.0]), (3.0, [2.0, 1.5]), (1.0, [])],
)
def test_sums_in_fp16_are_divided_before_and_after(mesh: DeviceMesh, factor: float, divisions: list[float]) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    layout = layout_of(nn.Parameter(torch.ones(RANKS, 2)), Place.of(mesh, torch.device("cpu")), policy)
    graph = make_fx(lambda gradient: reduced(gradient, 1, layout, factor))(torch.ones(RANKS, 2)).graph
    assert [node.args[1] for node in graph.nodes if node.target is torch.ops.aten.div.Tensor] == divisions
