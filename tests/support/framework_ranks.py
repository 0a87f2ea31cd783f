"""One rank runs a block of docs/fully_shard.md: ``framework_ranks.py FRAMEWORK FOLDER``; writes what came of it."""

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import overlap_sched
from overlap_sched.distributed import shard

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "fully_shard.md"


class Layer(nn.Module):
    """As in the document."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Losing(nn.Sequential):
    """What transformers' ``Trainer`` takes: it returns its loss."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return {"loss": out.square().mean(), "out": out}


def block_of(framework: str) -> str:
    """Return the first block of Python behind its name."""
    found = re.search(rf"^\*\*{framework}\*\*.*?```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found, framework
    return found[1]


def given(framework: str, folder: Path) -> dict[str, Any]:
    """Names that the block uses, besides a model and data; the framework's are imported here."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"overlap_sched": overlap_sched, "shard": shard, "torch": torch, "dist": dist}
    names["init_device_mesh"] = init_device_mesh
    rows = list(torch.randn(48, 64))
    names["data"] = torch.utils.data.DataLoader(rows, batch_size=8)
    layers = [Layer() for _ in range(3)]
    names["model"] = nn.Sequential(*layers)
    if framework == "Accelerate":
        names["Accelerator"] = import_module("accelerate").Accelerator
    elif framework == "Trainer":
        from transformers import Trainer, TrainingArguments

        os.chdir(folder)
        names |= {"Trainer": Trainer, "TrainingArguments": TrainingArguments, "model": Losing(*layers)}
        names["data"] = [{"x": row} for row in rows]
        dist.init_process_group("gloo")
    elif framework == "Lightning":
        strategies = import_module("lightning.pytorch.strategies")
        names |= {"lightning": import_module("lightning"), "ModelParallelStrategy": strategies.ModelParallelStrategy}
        os.chdir(folder)
    else:
        names |= _flux()
    return names


def _flux() -> dict[str, Any]:
    from diffusers import ContextParallelConfig, FluxTransformer2DModel

    dist.init_process_group("gloo")
    torch.accelerator.device_count = lambda: 1  # type: ignore[assignment]  # diffusers divides by it: 0 without a GPU
    heads = {"attention_head_dim": 16, "num_attention_heads": 4, "axes_dims_rope": (4, 4, 8)}
    sizes = {"in_channels": 16, "joint_attention_dim": 32, "pooled_projection_dim": 32, "patch_size": 1}
    model = FluxTransformer2DModel(num_layers=1, num_single_layers=1, **heads, **sizes).eval()
    data = {
        "hidden_states": torch.randn(1, 64, 16),
        "encoder_hidden_states": torch.randn(1, 16, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(64, 3),
        "txt_ids": torch.zeros(16, 3),
        "return_dict": False,
    }
    with torch.no_grad():
        names = {"reference": model(**data)[0]}
    return {**names, "ContextParallelConfig": ContextParallelConfig, "model": model, "data": data}


def main(framework: str, folder: str) -> None:
    """Run it."""
    names = given(framework, Path(folder))
    first = [parameter.detach().clone() for parameter in names["model"].parameters()]
    exec(compile(block_of(framework), str(DOCUMENT), "exec"), names)
    if framework == "Trainer":  # a graph without gradients
        names["Trainer"](names["model"], names["arguments"], eval_dataset=names["data"]).evaluate()
    reports = [report.report for report in overlap_sched.reports()]
    moved = sum(not torch.equal(a, b) for a, b in zip(first, map(whole, names["model"].parameters()), strict=True))
    error = float((names["image"] - names["reference"]).abs().max()) if "image" in names else 0.0
    collectives = [len(report.schedule.problem.collectives) if report.schedule else 0 for report in reports]
    said = {"collectives": collectives, "moved": moved, "error": error}
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(said))


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """All of it, on every rank."""
    full = getattr(parameter, "full_tensor", None)
    return parameter.detach() if full is None else full().detach()


if __name__ == "__main__":
    main(*sys.argv[1:])
