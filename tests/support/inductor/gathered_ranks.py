"""What each of two gloo ranks runs: ``python -m tests.support.inductor.gathered_ranks FOLDER`` as under torchrun.

Layers of one shape, gathered by hand; where ranks are ``mixed``, rank 1 takes them the other way round. Writes
``FOLDER/rank<r>.pt``: per scene what was warned of before its first step ran, and the names that were shown.
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import overlap_sched
from overlap_sched import Options
from overlap_sched.inductor import agree
from tests.support.inductor.graph_caches import graph_caches_in
from tests.support.inductor.models import gathered
from tests.support.ranks import save_found

WIDTH = 8
WAYS: dict[str, dict[str, Any]] = {"inductor": {}, "backend": {"backend": overlap_sched.backend}}


class Layer(nn.Module):
    """One matrix, of which this rank has its rows."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.w = ranks, nn.Parameter(torch.randn(WIDTH // ranks, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ gathered(self.w.to(torch.float64), dist.group.WORLD.group_name, self.ranks).float())


class Layers(nn.Module):
    """Layers in an order; ``again``: gathered again in backward."""

    def __init__(self, ranks: int, order: Sequence[int], again: bool) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.layers = nn.ModuleList(Layer(ranks) for _ in order)
        self.order, self.again = list(order), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in self.order:
            x = checkpoint(self.layers[k], x, use_reentrant=False) if self.again else self.layers[k](x)
        return x.sum()


def step(way: str, mixed: bool, again: bool = False) -> dict[str, Any]:
    """Compile anew, one step."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    order = [0, 1] if not mixed or dist.get_rank() == 0 else [1, 0]
    model = Layers(dist.get_world_size(), order, again)
    shown: list[Any] = []
    asked = agree.agree

    def noted(mine: Any, *arguments: Any, **named: Any) -> Any:
        shown.append(mine.gathers)
        return asked(mine, *arguments, **named)

    with (
        warnings.catch_warnings(record=True) as caught,
        overlap_sched.enabled(Options(rewrites=())),
        mock.patch.object(agree, "agree", noted),
    ):
        warnings.simplefilter("always")
        torch.compile(model, fullgraph=True, **WAYS[way])(torch.ones(4, WIDTH)).backward()
    return {"warned": [str(one.message) for one in caught if "overlap_sched" in str(one.message)], "shown": shown}


def found() -> dict[tuple[str, str], Any]:
    """What is saved."""
    saved = {}
    torch._inductor.config.fx_graph_cache = False
    for way in WAYS:
        saved[way, "alike"] = step(way, mixed=False)
        saved[way, "mixed"] = step(way, mixed=True)
        saved[way, "mixed again"] = step(way, mixed=True, again=True)
    with torch._inductor.config.patch(fx_graph_cache=True), graph_caches_in(Path(sys.argv[1])):
        saved["inductor", "mixed, cold cache"] = step("inductor", mixed=True)
        saved["inductor", "alike, warm cache"] = step("inductor", mixed=False)
        saved["inductor", "mixed, warm cache"] = step("inductor", mixed=True)
    return saved


if __name__ == "__main__":
    save_found(found)
