"""Small sharded models, and a process group in which one process stands for two ranks."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from overlap_sched.cost import H100, Link, Network, Roofline
from overlap_sched.distributed import agreement
from overlap_sched.inductor import gloo

with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.compile_fx
    from torch._inductor import config

RANKS = 2

SIMPLE_OVERLAP = "aten_distributed_optimizations.enable_simple_overlap"
FORWARD_GAINS = SIMPLE_OVERLAP not in config.get_config_copy()
"""From torch 2.14 on its own pass, on by default, leaves nothing to gain in the small forward graphs of the tests."""
SLOW_NETWORK = Roofline(H100, Network(Link(50.0, 1e9), Link(50.0, 1e9)))
"""So that the collectives of small models, also on one rank, are worth hiding."""


@contextmanager
def emulated_ranks() -> Iterator[None]:
    """torch's ``fake`` process group: collectives return what this rank gives them, so results can be compared."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    kernels = None if torch.__version__ >= "2.13" else _kernels_that_set_their_results()
    try:
        yield
    finally:
        if kernels is not None:
            kernels._destroy()
        dist.destroy_process_group()


def _kernels_that_set_their_results() -> torch.library.Library:
    """Before torch 2.13 the ``fake`` group leaves results as they happen to lie in memory."""

    def gather(x: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
        return torch.cat([x] * ranks)

    def gather_out(x: torch.Tensor, ranks: int, group: str, *, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(torch.cat([x] * ranks))

    def scatter(x: torch.Tensor, reduction: str, ranks: int, group: str) -> torch.Tensor:
        return x[: x.shape[0] // ranks].clone()

    def swap(x: torch.Tensor, outgoing: list[int], incoming: list[int], group: str) -> torch.Tensor:
        return x.clone()

    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor", gather, "CPU")
    library.impl("all_gather_into_tensor_out", gather_out, "CPU")
    library.impl("reduce_scatter_tensor", scatter, "CPU")
    library.impl("all_to_all_single", swap, "CPU")
    return library


@contextmanager
def own_store(name: str) -> Iterator[None]:
    """What ranks agree on inside stands in a store of its own."""
    here = agreement.membership_of()
    assert here is not None
    own = replace(here, store=dist.PrefixStore(name, here.store))
    with mock.patch.object(agreement, "membership_of", lambda ranks=None: replace(own, ranks=ranks)):
        yield


def routed() -> bool:
    """Whether functional all_gathers on a CPU take our way around torch's gloo."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("_c10d_functional::all_gather_into_tensor", "CPU"))


def unroute() -> None:
    """Off: torch may still hold options with which other tests of this process compiled."""
    for holder in list(gloo._holders):
        gloo.release(holder)
    assert not routed()


def gathered(shard: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """A whole weight from its shards; its gradient comes back by a reduce_scatter."""
    functional = torch.ops._c10d_functional
    return functional.wait_tensor(functional.all_gather_into_tensor(shard, ranks, group))


class Block(nn.Module):
    """A norm and two sharded matrices: kernels that are fused, matmuls, collectives in both directions."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.up = nn.Parameter(torch.randn(width // ranks, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(2 * width // ranks, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD.group_name
        hidden = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        hidden = torch.nn.functional.silu(hidden @ gathered(self.up, group, self.ranks))
        return x + hidden @ gathered(self.down, group, self.ranks)


class Pair(nn.Module):
    """The least that can be reordered: two sharded matrices, without recomputation."""

    def __init__(self, width: int, ranks: int, group: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ranks, self.group = ranks, group or dist.group.WORLD.group_name
        self.first = nn.Parameter(torch.randn(width // ranks, width))
        self.second = nn.Parameter(torch.randn(width // ranks, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ gathered(self.first, self.group, self.ranks)
        return (hidden @ gathered(self.second, self.group, self.ranks)).sum()


class Swapped(Pair):
    """The matrix that is needed last is gathered first: a better order launches in another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        second = gathered(self.second, self.group, self.ranks)
        hidden = x @ gathered(self.first, self.group, self.ranks)
        return (hidden.sin().cos() @ second).sum()


class OtherSwapped(Swapped):
    """Another graph with the same collectives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sin())


class Lonely(Pair):
    """With a collective besides, on a group of this rank alone: an expert that others have not."""

    def __init__(self, width: int, ranks: int, alone: str) -> None:
        super().__init__(width, ranks)
        self.alone = alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional = torch.ops._c10d_functional
        return super().forward(x + functional.wait_tensor(functional.all_reduce(x.detach(), "sum", self.alone)))


class Net(nn.Module):
    """Blocks whose gathered weights are gathered again in the backward."""

    def __init__(self, blocks: int = 3, width: int = 32, ranks: int = RANKS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width, ranks) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().sum()


def step(model: nn.Module, compiled: Any, width: int = 32) -> list[torch.Tensor]:
    """Loss and gradients of one step on the same data each time."""
    model.zero_grad(set_to_none=True)
    x = torch.linspace(-1, 1, 16 * width).reshape(16, width).requires_grad_()
    loss = compiled(x)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters())]


class Uneven(nn.Module):
    """A DTensor whose rows do not divide by the ranks, as a vocabulary of 50257: the last ranks pad, others do not."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (ranks,))
        sizes = [(width, width), (2 * ranks + 1, width), (2 * ranks + 1, width)]
        self.weights = nn.ParameterList(distribute_tensor(torch.randn(size), mesh, [Shard(0)]) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = (
            weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            for weight in self.weights
        )
        hidden = torch.nn.functional.silu(x @ first)
        return (hidden @ second.T + hidden.sin() @ third.T).sum()


class Experts(nn.Module):
    """Tokens go to other ranks by what they hold: only the data knows the sizes of the all_to_alls."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ranks, self.group = ranks, dist.group.WORLD.group_name
        self.expert = nn.Parameter(torch.randn(width, width))
        self.shard = nn.Parameter(torch.randn(width // ranks, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ gathered(self.shard, self.group, self.ranks)
        own = dist.get_rank() + 1  # not 0, which torch 2.15 leaves out: the graphs of all ranks are one
        where = (x.detach()[:, 0].abs() * 7 + own).long() % self.ranks
        counts = torch.stack([(where == rank).sum() for rank in range(self.ranks)])
        theirs = torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_to_all_single(counts, [1] * self.ranks, [1] * self.ranks, self.group)
        )
        send, receive = counts.tolist(), theirs.tolist()
        tokens = hidden[where.argsort(stable=True)]
        sent = all_to_all_single_autograd(tokens, receive, send, self.group)
        done = torch.nn.functional.silu(sent @ self.expert)
        back = all_to_all_single_autograd(done, send, receive, self.group)
        return (back + hidden.cos()).sum()
