"""What each of two gloo ranks runs: ``python -m tests.support.inductor.unlike_ranks FOLDER`` as under torchrun.

A weight is gathered twice, the second time on rank 1 alone behind something more: ``cast``, which gathers of one tensor
are looked at through, or ``computed``, which they are not. Writes ``FOLDER/rank<r>.pt``: per way the results of torch
alone and of ours, how many rewrites, and the reasons that ranks were given.
"""

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import overlap_sched
from overlap_sched import Options
from overlap_sched.inductor import agree
from tests.support.inductor.models import gathered
from tests.support.ranks import save_found

LIMIT_S = 60.0
"""Ranks that come to meet each other never wait for so long."""
LAYERS = {"cast": 3, "computed": 2}
"""Another graph each time, on rank 0, too: nothing is known of it from before."""
WAYS: dict[str, Callable[[Tensor], Tensor]] = {"cast": lambda x: x.to(torch.float16), "computed": lambda x: x * 1.5}


def compiled(way: str, **arguments: Any) -> list[Tensor]:
    """Results of one batch."""
    torch._dynamo.reset()
    torch.manual_seed(dist.get_rank())
    table, group, ranks = torch.randn(64, 32), dist.group.WORLD.group_name, dist.get_world_size()
    weights = [torch.randn(16, 32) for _ in range(LAYERS[way])]
    more = WAYS[way] if dist.get_rank() == 1 else lambda x: x

    def whole(shard: Tensor) -> Tensor:
        return gathered(shard.to(torch.bfloat16), group, ranks)

    def model(index: Tensor) -> Tensor:
        x = whole(table)[index]
        for weight in weights:
            x = torch.relu(x @ whole(weight))
        return x @ whole(more(table)).t()

    with torch.no_grad():
        return [torch.compile(model, **arguments)(torch.arange(8))]


def found() -> dict[str, Any]:
    """What is saved."""
    saved = {}
    for way in WAYS:
        alone, reasons = compiled(way, backend="aot_eager"), []

        def heard(*args: Any, real: Any = agree.agree, reasons: list[str | None] = reasons, **more: Any) -> Any:
            agreement = real(*args, **more)
            reasons.append(agreement.reason)
            return agreement

        overlap_sched.clear_reports()
        with (
            mock.patch.object(agree, "agree", heard),
            overlap_sched.enabled(Options(headroom="100%"), ranks_per_node=1, timeout_s=LIMIT_S),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            ours = compiled(way, backend=overlap_sched.backend)
        made = [one.report.made for one in overlap_sched.reports()]
        saved[way] = (alone, ours, sum(len(plan.rewrites) for plan in made if plan is not None), reasons)
    return saved


if __name__ == "__main__":
    save_found(found)
