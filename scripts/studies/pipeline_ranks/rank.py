"""One rank over gloo: measures its blocks, hears the plan, trains with each schedule in torch's runtime."""

import logging
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.nn.functional import mse_loss

from overlap_sched.pipeline.compare import PlannedPipeline
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.job import PipelineLink
from overlap_sched.pipeline.replay import replay_pipeline
from scripts.studies.pipeline_ranks.link import SlowLink
from scripts.studies.pipeline_ranks.model import batch_shape, stages_of
from scripts.studies.pipeline_ranks.plan import Blocks, job_of, plans_of, with_blocks

MICRO_BATCHES, WARM_UP = 8, 2
"""Of a step; steps that are not counted."""


class Setting(NamedTuple):
    """What is run: a transfer takes so many seconds, a fifth of them latency; so many steps per schedule are counted."""

    ranks: int
    transfer_s: float
    kind: str
    sleeps: bool
    form: CsvFormat
    steps: int


class Row(NamedTuple):
    """A schedule, predicted (``step_us``) and measured: each step from the first rank's start to the last one's end.

    ``own_us``: for each, what is predicted from the blocks of that very step. ``losses``: of all, by micro-batch.
    """

    name: str
    step_us: float
    steps_us: list[float]
    own_us: list[float]
    losses: torch.Tensor


class Trainer:
    """A schedule of one rank with its stages; ``spans`` (seconds), ``blocks`` and ``losses`` are of its steps."""

    def __init__(self, setting: Setting, text: str, micro_batches: int, link: SlowLink) -> None:
        rows = [sorted({int(s) for s in re.findall(r"(\d+)F\d", row)}) for row in text.splitlines()]
        self._stages = stages_of(4 * setting.ranks, setting.sleeps, rows[dist.get_rank()], sum(map(len, rows)))
        self._optimizer = torch.optim.SGD([p for s in self._stages for p in s.submod.parameters()], lr=0.1)
        self._runtime = schedules._PipelineScheduleRuntime(self._stages, micro_batches, loss_fn=mse_loss)
        with tempfile.NamedTemporaryFile("w") as file:
            print(text, end="", file=file, flush=True)
            self._runtime._load_csv(file.name, format=setting.form.removesuffix("_waits"))
        torch.manual_seed(1)
        self._x, self._y = torch.randn(2, micro_batches, *batch_shape(setting.sleeps)).flatten(1, 2)
        self._link = link
        self.spans, self.blocks, self.losses = list[tuple[float, float]](), list[Blocks](), list[torch.Tensor]()

    def step(self) -> None:
        """Train once, behind a barrier."""
        losses, self._own_s = list[torch.Tensor](), list[tuple[str, float]]()
        x = (self._x,) if any(stage.is_first for stage in self._stages) else ()
        asked = {"target": self._y, "losses": losses} if any(stage.is_last for stage in self._stages) else {}
        slow = mock.patch.object(schedules, "_batch_p2p", self._link.batch_p2p)
        with slow, mock.patch.object(schedules, "record_function", self._timed):
            dist.barrier()
            began = time.perf_counter()
            self._runtime.step(*x, **asked)
            self.spans.append((began, time.perf_counter()))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses += [loss.detach() for loss in losses]
        self.blocks.append(_blocks(self._own_s))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Around each action of the runtime; the time in which it waits for a transfer is not its own."""
        began = time.perf_counter() - self._link.waited_s
        yield
        self._own_s.append((name.removeprefix("PP:"), time.perf_counter() - self._link.waited_s - began))


def _blocks(own_s: list[tuple[str, float]]) -> Blocks:
    """Means over the micro-batches; to ask for the transfers behind a block is part of it."""
    found: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    at = None
    for name, seconds in own_s:
        at = re.fullmatch(r"(\d+)([FBIW])\d+", name) or at
        if at is not None:
            found[int(at[1]), at[2]][at[0]] += seconds * 1e6
    return {block: mean(times.values()) for block, times in found.items()}


def _measured_blocks(setting: Setting, per_rank: int, link: SlowLink) -> Blocks:
    """Each block alone on its rank, through the runtime with one micro-batch: medians of the steps."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for back in ("B", "IW"):
        stages = [[s * setting.ranks + rank for s in range(per_rank)] for rank in range(setting.ranks)]
        orders = [[*(f"{s}F0" for s in mine), *(f"{s}{b}0" for s in mine[::-1] for b in back)] for mine in stages]
        trainer = Trainer(setting._replace(form="compute_only"), "\n".join(map(",".join, orders)), 1, link)
        for _ in range(WARM_UP + setting.steps):
            trainer.step()
        for block, us in (one for step in trainer.blocks[WARM_UP:] for one in step.items()):
            found[block].append(us)
    return {block: median(times) for mine in _gathered(dict(found)) for block, times in mine.items()}


def _gathered(mine: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def measured(setting: Setting) -> list[Row]:
    """Predict, then measure; every rank calls it."""
    rows, width = batch_shape(setting.sleeps)
    latency_s, output_bytes = setting.transfer_s / 5, rows * width * 4
    bytes_per_s = output_bytes / (setting.transfer_s - latency_s)
    link = SlowLink(setting.kind, latency_s, bytes_per_s)
    given = setting.ranks, MICRO_BATCHES, PipelineLink(1e6 * latency_s, bytes_per_s), output_bytes
    one, two = (job_of(_measured_blocks(setting, per_rank, link), *given) for per_rank in (1, 2))
    plans = [plans_of(one, two) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(plans)
    assert plans[0] is not None
    texts = [schedule_csv(plan.job, plan.schedule, plan.replay, setting.form) for plan in plans[0]]
    trainers = [Trainer(setting, text, MICRO_BATCHES, link) for text in texts]
    for _ in range(WARM_UP + setting.steps):  # in turn: what else the machine does meets them all
        for trainer in trainers:
            trainer.step()
    return [_row(plan, trainer) for plan, trainer in zip(plans[0], trainers, strict=True)]


def _row(plan: PlannedPipeline, trainer: Trainer) -> Row:
    ranks = _gathered((trainer.spans[WARM_UP:], trainer.blocks[WARM_UP:], trainer.losses))
    steps = zip(*(spans for spans, _, _ in ranks), strict=True)
    steps_us = [1e6 * (max(end for _, end in step) - min(began for began, _ in step)) for step in steps]
    steps = zip(*(blocks for _, blocks, _ in ranks), strict=True)
    jobs = (with_blocks(plan.job, {block: us for mine in step for block, us in mine.items()}) for step in steps)
    own_us = [replay_pipeline(job, plan.schedule).step_us for job in jobs]
    return Row(plan.name, plan.replay.step_us, steps_us, own_us, torch.stack([x for _, _, xs in ranks for x in xs]))


def run(rank: int, setting: Setting, folder: str) -> None:
    """Be a rank; the rows come into ``FOLDER/rows.pt``."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=setting.ranks)
    rows = measured(setting)
    if rank == 0:
        torch.save(rows, Path(folder) / "rows.pt")
    dist.barrier()
    dist.destroy_process_group()
