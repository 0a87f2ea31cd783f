"""One rank of ``scripts.studies.fit_run``: a small Llama trained under several limits."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch._inductor import config as inductor_config

import overlap_sched
from llama_repro.training.arguments import Arguments
from llama_repro.training.calibrate import measured_model
from llama_repro.training.slow_network import NoLink, Traffic, slow_network, with_slow_links
from llama_repro.training.trainer import DTYPES, Trainer, make_trainer
from llama_repro.training.world import World
from overlap_sched.cost.table import TableModel
from overlap_sched.errors import OptionsError
from overlap_sched.inductor.partitioning import Partition
from overlap_sched.joint import JointSearchResult
from scripts.studies.fit_run.memory import measured_peak
from scripts.studies.fit_run.whole import batch_of

SETTLE_S = 1e-2
"""How much longer waits take while memory is measured, see :class:`llama_repro.training.slow_network.Traffic`."""


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        limit: As it was asked for; ``"torch"``: not, torch's own cut.
        what: What was done for it.
        predicted_bytes, measured_bytes: The peak of forward and backward, without optimizer states.
        predicted_us, measured_us: Of forward and backward; the median of the steps.
        bitwise: Whether losses and all gradients of the last step are those of the first row.
    """

    limit: str
    what: str
    predicted_bytes: int
    measured_bytes: int
    predicted_us: float
    measured_us: float
    bitwise: bool


def rows(arguments: Arguments, world: World, limits: list[str], backend: str) -> list[Row]:
    """A row without a limit, then one for each; every rank calls it."""
    model = measured_model(world, DTYPES[arguments.dtype])
    if arguments.slow_network is not None:
        model = with_slow_links(model, arguments.slow_network * 1e9, arguments.slow_latency)
    network = slow_network(NoLink() if arguments.slow_network is None else model)
    with inductor_config.patch(fx_graph_cache=False), network as traffic:
        runs = [_run(arguments, world, limit, backend, model, traffic) for limit in (None, *limits)]
    first, before = runs[0].values, runs[1].found.before if runs[1].found is not None else None
    if before is None:
        raise OptionsError(f"nothing is predicted: {runs[1].what}")
    found = []
    for limit, run in zip(("torch", *limits), runs, strict=True):
        cut = before if run.found is None or run.reason else run.found.best
        bitwise = len(first) == len(run.values) and all(map(torch.equal, first, run.values))
        found.append(Row(limit, run.what, cut.peak_bytes, run.peak_bytes, cut.step_us, run.step_us, bitwise))
    return found


class _Run(NamedTuple):
    """Measured under one limit; ``found`` is ``None`` where there is none, ``reason`` says why torch's cut was used."""

    what: str
    found: JointSearchResult | None
    reason: str | None
    peak_bytes: int
    step_us: float
    values: list[Tensor]


def _run(
    arguments: Arguments, world: World, limit: str | None, backend: str, model: TableModel, traffic: Traffic
) -> _Run:
    torch.compiler.reset()
    trainer = make_trainer(arguments, world)
    compiled = torch.compile(trainer.model, fullgraph=True, dynamic=False, backend=backend)
    values: list[Tensor] = []
    with overlap_sched.enabled(arguments.options, model=model, memory_limit=limit):
        times = [_timed(_step(trainer, compiled, number), values) for number in range(arguments.steps)]
    held = bytes_of([*trainer.model.parameters(), *trainer.rotation, *batch_of(trainer, 0)])
    traffic.settle_s = SETTLE_S
    peak = min(measured_peak(_step(trainer, compiled, 0), held) for _ in range(2))
    traffic.settle_s = 0.0
    values += [local(p.grad).clone() for p in trainer.model.parameters() if p.grad is not None]
    partition = Partition("", reason="not asked for") if limit is None else overlap_sched.partitions()[-1]
    step_us = statistics.median(times[1:])
    return _Run(_done(partition), partition.found, partition.reason, peak, step_us, values)


def _step(trainer: Trainer, compiled: Callable[..., Tensor], number: int) -> Callable[[], Tensor]:
    def step() -> Tensor:
        for parameter in trainer.model.parameters():
            parameter.grad = None
        loss = compiled(*batch_of(trainer, number), *trainer.rotation)
        loss.backward()
        return loss.detach()

    return step


def _timed(step: Callable[[], Tensor], values: list[Tensor]) -> float:
    began = time.perf_counter()
    values.append(step())
    return (time.perf_counter() - began) * 1e6


def local(x: Tensor) -> Tensor:
    """A shard as a plain tensor."""
    return x.to_local() if hasattr(x, "to_local") else x


def bytes_of(tensors: list[Tensor]) -> int:
    """Of their storages, each once."""
    stored = {local(x).untyped_storage() for x in tensors}
    return sum({s.data_ptr(): s.nbytes() for s in stored}.values())


def _done(partition: Partition) -> str:
    found = partition.found
    if found is None or partition.reason is not None:
        return "torch's own cut"
    marks = found.best.marks
    told = [f"{len(marks.again)} more again"] if marks.again else []
    return ", ".join([*told, *([f"{len(marks.kept)} of gathers once"] if marks.kept else [])])
