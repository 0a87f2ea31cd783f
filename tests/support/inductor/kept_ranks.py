"""What each of two gloo ranks runs: ``python -m tests.support.inductor.kept_ranks FOLDER`` as under torchrun.

A model whose embedding is its head, too, gathers one weight twice: with all defaults, and with torch alone. Writes
``FOLDER/rank<r>.pt``: results of both, and the rewrites.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import overlap_sched
from overlap_sched import Options
from tests.support.inductor.models import gathered
from tests.support.ranks import save_found


class Tied(torch.nn.Module):
    """Looks rows of a sharded table up, and compares with all of them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(64, 32))
        self.weights = torch.nn.ParameterList(torch.randn(16, 32) for _ in range(3))

    def forward(self, index: Tensor) -> Tensor:
        group, ranks = dist.group.WORLD.group_name, dist.get_world_size()

        def whole(shard: Tensor) -> Tensor:
            return gathered(shard.to(torch.bfloat16), group, ranks)

        x = whole(self.table)[index]
        for weight in self.weights:
            x = torch.relu(x @ whole(weight))
        return x @ whole(self.table).t()


def results(model: Tied, **arguments: Any) -> list[Tensor]:
    """Of three batches."""
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, **arguments)
        return [compiled(torch.arange(8) * seed % 128) for seed in (1, 3, 5)]


def found() -> tuple[list[Tensor], list[Tensor], list[str]]:
    """What is saved."""
    torch.manual_seed(dist.get_rank())
    model = Tied()
    alone = results(model, backend="aot_eager")
    overlap_sched.clear_reports()
    with overlap_sched.enabled(Options(headroom="100%", strict=True), ranks_per_node=1):
        ours = results(model, backend=overlap_sched.backend)
    made = [one.report.made for one in overlap_sched.reports()]
    rewrites = [repr(one) for plan in made if plan is not None for one in plan.rewrites]
    return alone, ours, rewrites


if __name__ == "__main__":
    save_found(found)
