"""What is in the compiled graphs: in a fake world of four ranks, traced and not run."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

from llama_repro.capture.parallelism import fake_world
from overlap_sched.distributed import shard
from overlap_sched.distributed.agreement import Membership
from overlap_sched.errors import ShardingError
from overlap_sched.sharding import modules

_C10D = torch.ops._c10d_functional
GATHER, SCATTER = _C10D.all_gather_into_tensor.default, _C10D.reduce_scatter_tensor.default
ALL_REDUCE = _C10D.all_reduce.default
RANKS = 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
"""Dynamo makes one of each autograd function that it traces, and looks at every tensor's gradient."""


class Mlp(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 12, bias=False), nn.Linear(12, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.sin(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(RANKS):
        yield init_device_mesh("cpu", (RANKS,))
    torch._dynamo.reset()


def graphs_of(model: nn.Module, x: Tensor | None = None) -> tuple[fx.Graph, fx.Graph]:
    """Forward and backward."""
    found: list[fx.Graph] = []

    def keep(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(gm.graph)
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    run = torch.compile(model, fullgraph=True, backend=backend)
    run(torch.ones(3, 8, requires_grad=True) if x is None else x).sum().backward()
    forward, backward = found
    return forward, backward


def counts(graphs: tuple[fx.Graph, fx.Graph]) -> list[tuple[int, int, int]]:
    """(gathers, scatters, all_reduces) of each."""
    return [
        tuple(len(graph.find_nodes(op="call_function", target=target)) for target in (GATHER, SCATTER, ALL_REDUCE))
        for graph in graphs
    ]


def dtypes(graph: fx.Graph, target: Any) -> set[torch.dtype]:
    return {node.meta["val"].dtype for node in graph.find_nodes(op="call_function", target=target)}


def plain() -> nn.Sequential:
    return nn.Sequential(Mlp(), Mlp())


def frozen() -> nn.Sequential:
    model = nn.Sequential(Mlp())
    model[0].up.weight.requires_grad_(False)
    return model


def tied() -> nn.Sequential:
    model = plain()
    model[1].up.weight = model[0].up.weight
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "again", "expected"),
    [
        (plain, True, [(4, 0, 0), (4, 4, 0)]),
        (plain, None, [(4, 0, 0), (4, 4, 0)]),
        (plain, False, [(4, 0, 0), (0, 4, 0)]),  # kept
        (frozen, None, [(2, 0, 0), (2, 1, 0)]),
        (tied, None, [(3, 0, 0), (3, 4, 0)]),  # the gradient of the shared weight is reduced twice
        (lambda: nn.Sequential(Checkpointed(Mlp()), Mlp()), None, [(4, 0, 0), (4, 4, 0)]),
    ],
)
def test_what_is_gathered_and_reduced(mesh: DeviceMesh, make: Any, again: bool | None, expected: Any) -> None:
    model = shard(make(), mesh, reshard_after_forward=again)
    assert counts(graphs_of(model)) == expected
    model.set_reshard_after_forward(True)
    model.set_requires_gradient_sync(False)
    assert counts(graphs_of(model)) == [expected[0], (expected[0][0], 0, 0)]


@pytest.mark.slow
def test_parts_given_before_have_modes_of_their_own(mesh: DeviceMesh) -> None:
    model = nn.Sequential(Mlp(), Mlp())
    shard(model[0], mesh, reshard_after_forward=False)
    shard(model, mesh)
    assert counts(graphs_of(model)) == [(4, 0, 0), (2, 4, 0)]
    model.set_requires_gradient_sync(False, recurse=False)
    assert counts(graphs_of(model)) == [(4, 0, 0), (2, 2, 0)]
    model.set_requires_gradient_sync(False)
    assert counts(graphs_of(model)) == [(4, 0, 0), (2, 0, 0)]


@pytest.mark.slow
def test_replicas_add_their_gradients_up(mesh: DeviceMesh) -> None:
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    forward, backward = graphs_of(shard(nn.Sequential(Mlp()), square))
    assert counts((forward, backward)) == [(2, 0, 0), (2, 2, 2)]
    for graph, target, dimension in ((backward, ALL_REDUCE, 0), (forward, GATHER, 1)):
        groups = {node.args[-1] for node in graph.find_nodes(op="call_function", target=target)}
        assert groups == {square.get_group(dimension).group_name}


@pytest.mark.slow
def test_types_are_those_of_the_policy(mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float64)
    model = shard(nn.Sequential(Mlp()), mesh, mp_policy=policy)
    forward, backward = graphs_of(model)
    assert dtypes(forward, GATHER) == dtypes(backward, GATHER) == {torch.bfloat16}
    assert dtypes(backward, SCATTER) == {torch.float32}
    assert model(torch.ones(3, 8)).dtype == torch.float64
    # by default as this torch does
    _, backward = graphs_of(shard(nn.Sequential(Mlp()), mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16)))
    since = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    assert dtypes(backward, SCATTER) == {torch.float32 if since else torch.bfloat16}


@pytest.mark.slow
def test_modules_alike_share_what_is_compiled(mesh: DeviceMesh) -> None:
    model = shard(nn.Sequential(Mlp(), Mlp(), Mlp()), mesh)
    counters.clear()
    for layer in model:
        layer.compile(fullgraph=True, backend="aot_eager")
    model(torch.ones(3, 8, requires_grad=True) * 1.0).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


# Ranks that read other parameters of one shape are told so: two ranks on one store, one after the other.


FAULT = (
    "ranks 0 and 1 gather different parameters of one shape (4 x 4): as number 2, rank 0 reads parts.1.weight and "
    "rank 1 reads parts.2.weight. Let all ranks read the same parameters in the same order"
)
Run = Callable[..., None]


class Branches(nn.Module):
    """Reads the parts that it is told; the last has another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([*(nn.Linear(4, 4, bias=False) for _ in range(3)), nn.Linear(4, 6, bias=False)])

    def forward(self, x: Tensor, reads: tuple[int, ...]) -> list[Tensor]:
        return [self.parts[part](x) for part in reads]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A forward as one of two ranks: each with lists of its own, and the store that both have."""
    store, own = dist.HashStore(), [({}, {}) for _ in range(2)]

    def forward(rank: int, *reads: int, compiled: bool = False, parts_first: bool = False) -> None:
        monkeypatch.setattr(modules, "membership_of", lambda *_: Membership(store, rank, 2))
        first_reads, ended = own[rank]
        monkeypatch.setattr(modules, "_first_reads", first_reads)
        monkeypatch.setattr(modules, "_ended", ended)
        model, mesh = Branches(), init_device_mesh("cpu", (2,))
        for part in model.parts if parts_first else ():
            shard(part, mesh)
        shard(model, mesh)
        torch._dynamo.reset()
        called: Any = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        called(torch.ones(2, 4), reads)

    with fake_world(2):
        yield forward
    torch._dynamo.reset()


@pytest.mark.parametrize("parts_first", [False, True])
def test_another_parameter_of_the_same_shape_is_named(run: Run, parts_first: bool) -> None:
    run(0, 0, 1, parts_first=parts_first)
    for _ in range(2):  # and again, should somebody catch it
        with pytest.raises(ShardingError) as raised:
            run(1, 0, 2, parts_first=parts_first)
        assert str(raised.value).startswith(FAULT)


@pytest.mark.private
def test_also_where_it_is_compiled(run: Run) -> None:
    run(1, 0, 2, compiled=True)
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError, match=re.escape(FAULT)):
        run(0, 0, 1, compiled=True)


@pytest.mark.private
def test_what_is_read_again_or_compiled_again_on_one_rank_alone_is_no_fault(run: Run) -> None:
    run(0, 0, 1)
    run(0, 1, 0, compiled=True)
    run(1, 0, 1)
    run(1, 0, 0)
    for rank in range(2):
        run(rank, 0, 1, 2)


def test_other_shapes_are_left_to_torch_and_end_the_comparison(run: Run) -> None:
    run(0, 0, 3, 1)
    run(1, 0, 1, 2)


def test_a_store_that_fails_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.HashStore, "compare_set", None)
    run(0, 0, 1)
    run(1, 0, 2)
