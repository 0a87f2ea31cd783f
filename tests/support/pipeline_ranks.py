"""One rank of a pipelined step over gloo: ``python -m tests.support.pipeline_ranks FOLDER``, started as torchrun would.

In FOLDER are schedules as CSV files, ``NAME.FORMAT.csv``. Each, and torch's own 1F1B and GPipe, train one small model
for two steps; losses and weights come into ``FOLDER/rank<r>.pt``.
"""

import logging
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from tests.support.ranks import save_found

LAYERS, WIDTH, BATCH, BATCHES = 8, 4, 2, 8
"""Of the model; rows of a micro-batch; micro-batches."""


def stages_of(indices: list[int], count: int) -> list[PipelineStage]:
    torch.manual_seed(0)
    whole, size = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)], LAYERS // count
    parts = {i: nn.Sequential(*whole[i * size : (i + 1) * size]) for i in indices}
    return [PipelineStage(part, i, count, torch.device("cpu")) for i, part in parts.items()]


def trained(schedule: Any, stages: list[PipelineStage]) -> dict[str, Any]:
    """Losses of two steps per micro-batch, where the last stage is; weights behind them, by number of the layer."""
    torch.manual_seed(1)
    x, y = torch.randn(BATCH * BATCHES, WIDTH), torch.randn(BATCH * BATCHES, WIDTH)
    size = LAYERS // stages[0].num_stages
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.submod.parameters()], lr=0.5)
    losses: list[list[Tensor]] = []
    for _ in range(2):
        given = (x,) if any(stage.is_first for stage in stages) else ()
        one: list[Tensor] = []
        asked = {"target": y, "losses": one} if any(stage.is_last for stage in stages) else {}
        schedule.step(*given, **asked)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.detach() for loss in one])
    weights = {
        stage.stage_index * size + k: [weight.detach() for weight in layer.parameters()]
        for stage in stages
        for k, layer in enumerate(stage.submod)
    }
    return {"losses": losses, "weights": weights}


def found() -> dict[str, Any]:
    rank = dist.get_rank()
    results = {}
    for of in (Schedule1F1B, ScheduleGPipe):
        stages = stages_of([rank], dist.get_world_size())
        results[of.__name__] = trained(of(stages[0], BATCHES, loss_fn=mse_loss), stages)
    for path in sorted(Path(sys.argv[1]).glob("*.csv")):
        name, form, _ = path.name.split(".")
        rows = [set(map(int, re.findall(r"(\d+)F\d", row))) for row in path.read_text().splitlines()]
        stages = stages_of(sorted(rows[rank]), len(set().union(*rows)))
        schedule = _PipelineScheduleRuntime(stages, BATCHES, loss_fn=mse_loss)
        schedule._load_csv(str(path), format=form)
        results[f"{name}.{form}"] = trained(schedule, stages)
    return results


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    save_found(found)
