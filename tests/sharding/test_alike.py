"""Ranks that read other parameters of one shape are told so: two ranks on one store, one after the other."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from llama_repro.capture.parallelism import fake_world
from overlap_sched.distributed import shard
from overlap_sched.distributed.agreement import Membership
from overlap_sched.errors import ShardingError
from overlap_sched.sharding import modules

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
"""Dynamo makes one of each autograd function that it traces, and looks at every tensor's gradient."""
FAULT = (
    "ranks 0 and 1 gather different parameters of one shape (4 x 4): as number 2, rank 0 reads parts.1.weight and "
    "rank 1 reads parts.2.weight. Each would get rows of both. Let all ranks read the same parameters in the "
    "same order: look for a branch that depends on the rank or its data."
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
        assert str(raised.value) == FAULT


@pytest.mark.slow
@pytest.mark.private
def test_also_where_it_is_compiled(run: Run) -> None:
    run(1, 0, 2, compiled=True)
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError) as raised:
        run(0, 0, 1, compiled=True)
    assert FAULT in str(raised.value)


@pytest.mark.slow
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
