"""What each of two gloo ranks runs: ``python -m tests.support.joint_ranks FOLDER``: cuts that all agree on.

Writes ``FOLDER/rank<r>.pt``: per case results, what is marked, and why torch's own cut is used.
"""

import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import shard
from overlap_sched.inductor import partitioning
from tests.support.joint_models import WIDTH, blocks
from tests.support.ranks import save_found


def one(**how: Any) -> dict[str, Any]:
    """Compile anew, one step."""
    torch.compiler.reset()
    partitioning.clear_partitions()
    torch.manual_seed(0)
    model = blocks(number=2)
    for block in model:
        shard(block, init_device_mesh("cpu", (dist.get_world_size(),)))
    given = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    least = Options(effort=1)  # it is cuts that are looked at, not orders
    with overlap_sched.enabled(least, timeout_s=60.0, **how), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.compile(model, backend=overlap_sched.backend)(given)
        made.square().sum().backward()
    grads = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
    found = [part.found for part in partitioning.partitions() if part.found is not None]
    return {
        "results": [made.detach(), *grads],
        "again": [sorted(part.best.marks.again) for part in found],
        "kept": [sorted(part.best.marks.kept) for part in found],
        "reasons": [part.reason for part in partitioning.partitions()],
    }


def found() -> dict[str, Any]:
    """What is saved."""
    rank = dist.get_rank()
    cases = {"plain": one(), "less": one(memory_limit="85%"), "more": one(memory_limit="200%")}
    with mock.patch.object(partitioning, "fit_joint", side_effect=ValueError("broken")) if rank else nullcontext():
        cases["one rank fails"] = one(memory_limit="80%")
    cases["other limits"] = one(memory_limit="75%" if rank else "82%")
    cases["less again"] = one(memory_limit="85%")
    return cases


if __name__ == "__main__":
    save_found(found)
