"""What each of three gloo ranks runs: ``python -m tests.support.sharding.rows FOLDER`` as under torchrun.

Parameters of 1 and 5 rows: some ranks have none of them, so each rank compiles code of its own. Two steps and an
evaluation by Inductor. Saves, of DTensors and of ``shard``: results by torch alone and by ours, and of each agreement
the reason why it failed.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import overlap_sched
from overlap_sched.inductor import agree
from tests.support.ranks import save_found

ROWS = (1, 5)


class Rows(nn.Module):
    """Its parameters are DTensors, gathered one by one."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        parts = [nn.Parameter(distribute_tensor(torch.randn(rows, 5), mesh, [Shard(0)])) for rows in ROWS]
        self.weights = nn.ParameterList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            whole = weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            x = x + (x @ whole.t()).sin().sum(-1, keepdim=True)
        return x


def sharded(mesh: DeviceMesh) -> Any:
    """The same sizes, by ``shard``."""
    return overlap_sched.shard(nn.Sequential(nn.Linear(5, ROWS[0]), nn.Linear(ROWS[0], ROWS[1])), mesh)


def trained(build: Callable[[DeviceMesh], nn.Module]) -> list[Tensor]:
    """Losses, then what a batch gives without gradients, then the parts of the weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = build(init_device_mesh("cpu", (dist.get_world_size(),)))
    run, optimizer = torch.compile(model, fullgraph=True), torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    results = []
    for _ in range(2):
        loss = run(torch.randn(4, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.detach())
    with torch.no_grad():
        results.append(run.eval()(torch.randn(4, 5)))
    return [*results, *(p.detach().to_local().clone() for p in model.parameters())]  # type: ignore[attr-defined]


def found() -> dict[str, Any]:
    """What is saved."""
    saved: dict[str, Any] = {}
    for way, build in {"DTensor": Rows, "shard": sharded}.items():
        reasons: list[str | None] = []

        def heard(*args: Any, real: Any = agree.agree, reasons: list[str | None] = reasons, **more: Any) -> Any:
            agreement = real(*args, **more)
            reasons.append(agreement.reason)
            return agreement

        for name, on in {"alone": nullcontext, "ours": partial(overlap_sched.enabled, timeout_s=600)}.items():
            caches = torch._inductor.config.patch(fx_graph_cache=False)  # a pass is not called behind a hit
            with caches, mock.patch.object(agree, "agree", heard), on():
                saved[f"{way} {name}"] = trained(build)
        saved[f"{way} reasons"] = reasons
    return saved


if __name__ == "__main__":
    save_found(found)
