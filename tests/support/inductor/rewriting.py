"""What each of two gloo ranks runs: ``python -m tests.support.inductor.rewriting FOLDER`` as under torchrun.

Graphs whose collectives are rewritten, each scene with a store of its own. Writes ``FOLDER/rank<r>.pt``: per scene the
results of torch alone and of ours, the rewrites, and the reasons that ranks were given.

- ``float32``, ``bfloat16``: three steps of training with all defaults, over gloo that coalesces gathers.
- ``tied``: an embedding that is the head, too, so one weight is gathered twice; rank 1 gathers it behind a ``cast``,
  which gathers of one tensor are looked at through, or behind something ``computed``, which they are not.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

import overlap_sched
from overlap_sched import Options
from overlap_sched.fx.rewrites import facts
from overlap_sched.inductor import agree, gloo
from tests.support.inductor.models import Net, gathered, own_store, step
from tests.support.ranks import save_found

# Gloo that coalesces gathers, as NCCL does: for ranks that run what is the default there.


@contextmanager
def coalescing_gloo() -> Iterator[None]:
    """Its own coalesced gathers damage memory when several are in flight: these are one gather per tensor."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor_coalesced", _gather, "CPU")
    try:
        with mock.patch.object(facts, "over_gloo", return_value=False):
            yield
    finally:
        library._destroy()


def _gather(inputs: Sequence[torch.Tensor], group_size: int, group_name: Any) -> list[torch.Tensor]:
    return [gloo._gather(one, group_size, group_name) for one in inputs]


LIMIT_S = 60.0
"""Ranks that come to meet each other never wait for so long."""
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "tied": lambda x: x,
    "cast": lambda x: x.to(torch.float16),
    "computed": lambda x: x * 1.5,
}


class Tied(nn.Module):
    """Looks rows of a sharded table up, and compares with all of them at the end."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.more = WAYS[way] if dist.get_rank() else WAYS["tied"]
        self.table = nn.Parameter(torch.randn(64, 32))
        self.weights = nn.ParameterList(torch.randn(16, 32) for _ in range(3))

    def forward(self, index: Tensor) -> Tensor:
        group, ranks = dist.group.WORLD.group_name, dist.get_world_size()

        def whole(shard: Tensor) -> Tensor:
            return gathered(shard.to(torch.bfloat16), group, ranks)

        x = whole(self.table)[index]
        for weight in self.weights:
            x = torch.relu(x @ whole(weight))
        return x @ whole(self.more(self.table)).t()


def looked_up(way: str, backend: Any) -> list[Tensor]:
    """Results of three batches."""
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(Tied(way), backend=backend)
        return [compiled(torch.arange(8) * seed % 128) for seed in (1, 3, 5)]


def trained(dtype: torch.dtype, backend: Any) -> list[Tensor]:
    """What three steps give, one after the other."""
    torch._dynamo.reset()
    model = Net(blocks=3, ranks=dist.get_world_size()).to(dtype)
    compiled = torch.compile(lambda x: model(x.to(dtype)).float(), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    results = []
    for _ in range(3):
        results += [one.clone() for one in step(model, compiled)]
        optimizer.step()
    return results


@contextmanager
def scene(name: str, reasons: list[str | None]) -> Iterator[None]:
    """A store of its own, and what ranks are answered there."""

    def heard(*args: Any, real: Any = agree.agree, **more: Any) -> Any:
        answer = real(*args, **more)
        reasons.append(answer.reason)
        return answer

    overlap_sched.clear_reports()
    with (
        own_store(name),
        mock.patch.object(agree, "agree", heard),
        overlap_sched.enabled(Options(headroom="100%"), ranks_per_node=1, timeout_s=LIMIT_S),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def found() -> dict[str, Any]:
    """What is saved."""
    runs: dict[str, Callable[[Any], list[Tensor]]] = {
        "float32": lambda backend: trained(torch.float32, backend),
        "bfloat16": lambda backend: trained(torch.bfloat16, backend),
        **{way: lambda backend, way=way: looked_up(way, backend) for way in WAYS},
    }
    saved = {}
    for name, run in runs.items():
        alone, reasons = run("aot_eager"), list[str | None]()
        with scene(name, reasons):
            if name in WAYS:
                ours = run(overlap_sched.backend)
            else:
                with coalescing_gloo():
                    ours = run(overlap_sched.backend)
        made = [one.report.made for one in overlap_sched.reports()]
        rewrites = [repr(one) for plan in made if plan is not None for one in plan.rewrites]
        saved[name] = (alone, ours, rewrites, reasons)
    return saved


if __name__ == "__main__":
    save_found(found)
