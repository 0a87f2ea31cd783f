"""One rank over gloo: measures its blocks, hears the plan, trains with each schedule."""

import logging
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.nn.functional import mse_loss

from overlap_sched.pipeline.compare import PlannedPipeline
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.job import PipelineLink
from overlap_sched.pipeline.replay import replay_pipeline
from scripts.studies.pipeline_ranks.link import Link, SlowLink
from scripts.studies.pipeline_ranks.model import Model
from scripts.studies.pipeline_ranks.plan import Blocks, job_of, plans_of, with_blocks

WARM_UP = 2
"""Steps that are not counted."""


@dataclass(frozen=True)
class Setting:
    """What is run: ``link`` in microseconds and bytes per second, ``steps`` that are counted per schedule."""

    model: Model
    ranks: int
    micro_batches: int
    link: PipelineLink
    kind: Link
    form: CsvFormat
    steps: int


@dataclass(frozen=True)
class Row:
    """A schedule, predicted and measured; microseconds.

    Attributes:
        step_us: Predicted from blocks that were measured alone.
        steps_us: Each step that was counted, from the first rank's start to the last one's end.
        own_us: For each of them what is predicted from the blocks of that very step, the mean of each.
        losses: Of all steps, those before among them; by micro-batch.
    """

    name: str
    step_us: float
    steps_us: tuple[float, ...]
    own_us: tuple[float, ...]
    losses: torch.Tensor


class Trainer:
    """A schedule of one rank with its stages, in the runtime of torch."""

    def __init__(self, setting: Setting, text: str, form: CsvFormat, micro_batches: int, link: SlowLink) -> None:
        rows = [sorted({int(s) for s in re.findall(r"(\d+)F\d", row)}) for row in text.splitlines()]
        self._stages = setting.model.stages(rows[dist.get_rank()], sum(map(len, rows)))
        self._optimizer = torch.optim.SGD([p for s in self._stages for p in s.submod.parameters()], lr=0.1)
        self._runtime = schedules._PipelineScheduleRuntime(self._stages, micro_batches, loss_fn=mse_loss)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_text(text)
            self._runtime._load_csv(str(path), format=form.removesuffix("_waits"))
        torch.manual_seed(1)
        shape = (micro_batches * setting.model.rows, setting.model.width)
        self._x, self._y, self._link = torch.randn(shape), torch.randn(shape), link
        self.losses: list[torch.Tensor] = []
        self.spans: list[tuple[float, float]] = []
        self.blocks: list[Blocks] = []

    def step(self) -> None:
        """One training step; all ranks start it together."""
        losses: list[torch.Tensor] = []
        given = (self._x,) if self._stages[0].is_first else ()
        asked = {"target": self._y, "losses": losses} if self._stages[-1].is_last or self._stages[0].is_last else {}
        self._actions: list[tuple[str, float]] = []
        with (
            mock.patch.object(schedules, "_batch_p2p", self._link.batch_p2p),
            mock.patch.object(schedules, "record_function", self._timed),
        ):
            dist.barrier()
            began = time.perf_counter()
            self._runtime.step(*given, **asked)
            self.spans.append((began, time.perf_counter()))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses += [loss.detach() for loss in losses]
        self.blocks.append(_blocks(self._actions))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Around each action of the runtime; the time in which it waits for a transfer is not its own."""
        began, waited = time.perf_counter(), self._link.waited_s
        yield
        own_s = time.perf_counter() - began - (self._link.waited_s - waited)
        self._actions.append((name.rpartition(":")[2], own_s))


def _blocks(actions: Sequence[tuple[str, float]]) -> dict[tuple[int, str], float]:
    """Means over the micro-batches, microseconds; launching the transfers behind a block is part of it."""
    found: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    at = None
    for name, own_s in actions:
        at = re.fullmatch(r"(\d+)([FBIW])\d+", name) or at
        if at is not None:
            found[int(at[1]), at[2]][at[0]] += own_s * 1e6
    return {block: mean(times.values()) for block, times in found.items()}


def measured_blocks(setting: Setting, per_rank: int, link: SlowLink) -> Blocks:
    """Each block alone on its rank, through the runtime with one micro-batch: medians of the steps."""
    ranks = range(setting.ranks)
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for back in ("B", "IW"):
        stages = [[s * setting.ranks + rank for s in range(per_rank)] for rank in ranks]
        orders = [[*(f"{s}F0" for s in mine), *(f"{s}{b}0" for s in mine[::-1] for b in back)] for mine in stages]
        trainer = Trainer(setting, "\n".join(map(",".join, orders)), "compute_only", 1, link)
        for _ in range(WARM_UP + setting.steps):
            trainer.step()
        for step in trainer.blocks[WARM_UP:]:
            for block, us in step.items():
                found[block].append(us)
    return {block: median(times) for mine in _gathered(dict(found)) for block, times in mine.items()}


def _gathered(mine: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def measured(setting: Setting) -> list[Row]:
    """Predict, then measure; every rank calls it."""
    link = SlowLink(setting.kind, setting.link.latency_us / 1e6, setting.link.bytes_per_s)
    blocks = [measured_blocks(setting, per_rank, link) for per_rank in (1, 2)]
    plan: list[Any] = [None]
    if dist.get_rank() == 0:
        given = setting.ranks, setting.micro_batches, setting.link, setting.model.output_bytes
        for each in blocks:
            print(", ".join(f"{stage}{letter} {us / 1e3:.1f}" for (stage, letter), us in sorted(each.items())), "ms")
        plan = [plans_of(*(job_of(each, *given) for each in blocks))]
    dist.broadcast_object_list(plan)
    plans: list[PlannedPipeline] = plan[0]
    texts = [schedule_csv(one.job, one.schedule, one.replay, setting.form) for one in plans]
    trainers = [Trainer(setting, text, setting.form, setting.micro_batches, link) for text in texts]
    for _ in range(WARM_UP + setting.steps):  # in turn: what else the machine does meets them all
        for trainer in trainers:
            trainer.step()
    return [_row(one, trainer) for one, trainer in zip(plans, trainers, strict=True)]


def _row(plan: PlannedPipeline, trainer: Trainer) -> Row:
    ranks = _gathered((trainer.spans[WARM_UP:], trainer.blocks[WARM_UP:], trainer.losses))
    steps = zip(*(spans for spans, _, _ in ranks), strict=True)
    lasted = tuple(1e6 * (max(end for _, end in step) - min(began for began, _ in step)) for step in steps)
    own = []
    for step in zip(*(blocks for _, blocks, _ in ranks), strict=True):
        job = with_blocks(plan.job, {block: us for mine in step for block, us in mine.items()})
        own.append(replay_pipeline(job, plan.schedule).step_us)
    losses = torch.stack([loss for _, _, mine in ranks for loss in mine])
    return Row(plan.name, plan.replay.step_us, lasted, tuple(own), losses)


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
