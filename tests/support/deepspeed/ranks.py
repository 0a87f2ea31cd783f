"""One rank of a job whose graphs are those of DeepCompile's ZeRO-3: steps in its order, and in ours.

``python -m tests.support.deepspeed.ranks FOLDER``, started as torchrun would. Writes ``FOLDER/rank<r>.json``.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from overlap_sched.deepspeed.graph_pass import order_pass
from overlap_sched.inductor import reports
from overlap_sched.inductor.settings import Settings
from tests.support.deepspeed.graphs import Backend
from tests.support.deepspeed.operators import start


class Block(nn.Module):
    """A normed layer with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def shards_of(model: nn.Module, rank: int, ranks: int) -> dict[int, tuple[torch.Tensor, torch.Size]]:
    """Per parameter, by number, this rank's padded shard and the whole shape. The model's own is overwritten."""
    found = {}
    for number, parameter in enumerate(model.parameters()):
        flat = parameter.detach().flatten()
        padded = torch.zeros(-(-flat.numel() // ranks) * ranks)
        padded[: flat.numel()] = flat
        found[number] = padded.view(ranks, -1)[rank].clone(), parameter.shape
        parameter.data.fill_(float("nan"))
    return found


def step(graph_pass: Any, rank: int, ranks: int) -> dict[str, Any]:
    """Two forward and backward passes; the losses, gradients' shards, and in which order the graphs ran."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(*(Block(16) for _ in range(3)))
    parameters = shards_of(model, rank, ranks)
    zero3 = start(parameters, ranks)
    backend = Backend({id(parameter): number for number, parameter in enumerate(model.parameters())}, graph_pass)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(2):
        loss = compiled(torch.randn(8, 16)).square().mean()
        loss.backward()
        losses.append(loss.item())
    gradients = [parameter.gradient.tolist() for parameter in zero3.parameters.values()]
    left = list(zero3.gathered), len(zero3.in_flight), len(zero3.bucket)
    return {"losses": losses, "gradients": gradients, "left": left, "told": zero3.told, "graphs": backend.listings}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    settings = Settings(stage="deepspeed")
    ours = partial(order_pass, settings=settings)
    found = {
        "theirs": step(lambda gm, bwd: None, rank, ranks),
        "ours": step(lambda gm, bwd: ours(gm, 7, [(7, True)], {}, None, 0.0, None, bwd), rank, ranks),
        "reports": [str(report) for report in reports()],
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
