"""Models whose joint graphs are cut, and a step of each; what is returned shows every effect of the step.

What each of two gloo ranks runs: ``python -m tests.support.joint_ranks FOLDER``: cuts that all agree on.

Writes ``FOLDER/rank<r>.pt``: per case results, what is marked, and why torch's own cut is used.
"""

import copy
import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import shard
from overlap_sched.inductor import partitioning
from tests.support.ranks import save_found

WIDTH = 32


class Block(nn.Module):
    """A residual block that saves much for backward."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.up(self.norm(x)))
        made: Tensor = x + self.dropout(self.down(hidden.sin()))
        return made


class Normed(nn.Module):
    """Batch norms: their statistics are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + functional.gelu(part(x)).cos()
        return x


class Tied(nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.blocks = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH), blocks()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.blocks(functional.linear(x, self.weight)), self.weight)


class Checkpointed(nn.Module):
    """A checkpoint with random numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(0.5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return made


def blocks(dropout: float = 0.0, number: int = 3) -> nn.Sequential:
    """Some of them."""
    return nn.Sequential(*(Block(dropout) for _ in range(number)))


def dropping() -> nn.Sequential:
    """With dropout."""
    return blocks(0.3)


def step(model: nn.Module, rows: int = 64, backend: Any = overlap_sched.backend, **how: Any) -> list[Tensor]:
    """One step of a copy, compiled anew: the result, gradients and buffers. ``how``: as of ``enabled``."""
    torch.compiler.reset()
    partitioning._partitions.clear()
    model, dynamic = copy.deepcopy(model).train(), how.pop("dynamic", None)
    torch.manual_seed(1)
    given = torch.randn(rows, WIDTH, requires_grad=True)
    with overlap_sched.enabled(how.pop("options", None) or Options(), **how):
        made = torch.compile(model, backend=backend, dynamic=dynamic)(given)
        made.square().sum().backward()
    grads = [given.grad, *(p.grad for p in model.parameters())]
    return [made.detach(), *(g for g in grads if g is not None), *model.buffers()]


class Logging(nn.Module):
    """Some blocks; what is logged makes another graph."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.blocks = blocks(number=number)

    def forward(self, x: Tensor, log: bool) -> tuple[Tensor, ...]:
        x = self.blocks(x)
        return (x, x.std()) if log else (x,)


def one(number: int = 2, alone: str = "", backend: Any = overlap_sched.backend, **how: Any) -> dict[str, Any]:
    """Compile anew, one step; or three, for the second of which rank 0 alone compiles another ``batch`` or ``log``."""
    torch.compiler.reset()
    partitioning._partitions.clear()
    torch.manual_seed(0)
    model, results = Logging(number), list[Tensor]()
    for block in model.blocks:
        shard(block, init_device_mesh("cpu", (dist.get_world_size(),)))
    least = Options(effort=1)  # it is cuts that are looked at, not orders
    with overlap_sched.enabled(least, timeout_s=60.0, **how), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, backend=backend, dynamic=False)
        for turn in range(3 if alone else 1):
            other = alone if dist.get_rank() == 0 and turn == 1 else ""
            seed = torch.Generator().manual_seed(turn + dist.get_rank())
            made = compiled(torch.randn(48 if other == "batch" else 64, WIDTH, generator=seed), other == "log")[0]
            model.zero_grad()
            made.square().sum().backward()
            results += [made.detach(), *(p.grad.to_local() for p in model.parameters() if p.grad is not None)]
    found = [part.found for part in partitioning.partitions() if part.found is not None]
    return {
        "results": results,
        "again": [sorted(part.best.marks.again) for part in found],
        "kept": [sorted(part.best.marks.kept) for part in found],
        "reasons": [part.reason for part in partitioning.partitions()],
    }


def found() -> dict[str, Any]:
    """What is saved."""
    rank = dist.get_rank()
    broken = mock.patch.object(partitioning, "fit_joint", side_effect=ValueError("broken"))
    cases: dict[str, Any] = {"plain": one(), "plain more": one(3)}
    with broken if rank else nullcontext():
        cases["one rank fails"] = one(memory_limit="80%")
    cases["other limits"] = one(memory_limit="75%" if rank else "82%")
    cases["less"] = one(memory_limit="85%")
    cases["more"] = one(3, memory_limit="200%")  # other launches: what is in force for "less" is not followed
    with broken if rank else nullcontext():
        cases["follows"] = one(memory_limit="80%")
    for alone in ("batch", "log"):
        pair = (one(3, alone, backend, memory_limit="200%") for backend in (overlap_sched.backend, "aot_eager"))
        cases[f"one compiles another {alone}"] = [case["results"] for case in pair]
    return cases


if __name__ == "__main__":
    save_found(found)
