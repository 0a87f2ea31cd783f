"""``scripts/train.py``: train, save, measure, and say what came of it.

Exit status: 0; 2 for wrong usage or where something that was asked for cannot be done.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch._inductor import config as inductor_config
from torch._inductor import metrics

import overlap_sched
from llama_repro.harness.console import guarded
from llama_repro.training.arguments import Arguments, parse
from llama_repro.training.calibrate import measured_model, synchronize
from llama_repro.training.checkpoint import resume, save
from llama_repro.training.measure import Profiled, profiled
from llama_repro.training.outcome import Outcome
from llama_repro.training.schedulers import scheduling
from llama_repro.training.slow_network import NoLink, Traffic, slow_network, with_slow_links
from llama_repro.training.tracing import record, traceable
from llama_repro.training.trainer import DTYPES, Trainer, identity, make_trainer
from llama_repro.training.world import World, world_of
from overlap_sched.cost import Roofline
from overlap_sched.cost.table import TableModel
from overlap_sched.errors import OptionsError
from overlap_sched.report.files import check_writable, write_file

_LINES = 10
"""Lines that a run prints where no terminal shows a bar."""


def main(given: list[str] | None = None) -> int:
    """Run the command on this rank; returns the exit status."""

    def run() -> int:
        arguments = parse(given)
        with world_of(arguments.device) as world:
            _run(arguments, world)
        return 0

    return guarded("train", run)


def _run(arguments: Arguments, world: World) -> None:
    if arguments.json:
        check_writable(arguments.json)
    console = Console(quiet=world.rank != 0, soft_wrap=True, highlight=False)
    if arguments.slow_network is not None and world.device.type != "cpu":
        raise OptionsError("--slow-network slows collectives of the CPU down; add --device cpu.")
    if world.note:
        console.print(f"train: {world.note}", markup=False)
    trainer = make_trainer(arguments, world)
    outcome = train(arguments, trainer, console)
    _summary(outcome, console)
    if arguments.json and world.rank == 0:
        about = {
            "scheduler": arguments.scheduler,
            "options": vars(arguments.options),
            "device": str(world.device.type),
            "backend": world.backend,
            "torch": torch.__version__,
            **identity(arguments, trainer),
        }
        write_file(arguments.json, json.dumps({**about, **outcome.to_json()}, indent=1).encode())


def train(arguments: Arguments, trainer: Trainer, console: Console) -> Outcome:
    """Resume if there is a checkpoint, run the steps that are left, save; measure where asked for."""
    world, config = trainer.world, identity(arguments, trainer)
    first = 0
    if arguments.checkpoint is not None:
        first = resume(arguments.checkpoint, config, trainer.model, trainer.optimizer)
        if first:
            console.print(f"train: resumed after step {first} of {arguments.checkpoint}", markup=False)
    measured = arguments.costs == "measured" and _asks_for_times(arguments)
    model: Roofline | TableModel | None = measured_model(world, DTYPES[arguments.dtype]) if measured else None
    if arguments.slow_network is not None:
        model = with_slow_links(model or Roofline(), arguments.slow_network * 1e9, arguments.slow_latency)
    _quieten()
    overlap_sched.clear_reports()
    metrics.reset()
    on_gpu = world.device.type == "cuda"
    seen: Profiled | None = None
    with (
        inductor_config.patch(fx_graph_cache=False),  # what is found there is not scheduled again, and so not reported
        slow_network(model) if arguments.slow_network is not None and model else nullcontext() as traffic,
        scheduling(arguments.scheduler, arguments.options, model, on_gpu=on_gpu, predict=arguments.predict),
        traceable(arguments.trace, world),
        _shown(first, arguments.steps, console) as show,
    ):
        done = [_step(number, arguments, trainer, traffic, show) for number in range(first, arguments.steps)]
        weights = trainer.digests()
        static = trainer.static_bytes()
        if arguments.trace is not None:
            record(trainer.step, arguments.steps, arguments.trace, world)
        if arguments.measure:
            with nullcontext(traffic) if traffic is not None or on_gpu else slow_network(NoLink()) as waits:
                seen = profiled(lambda: trainer.step(arguments.steps), world.device, waits)
    peak = torch.cuda.max_memory_allocated(world.device) if on_gpu else static + seen.growth_bytes if seen else None
    return Outcome(
        first_step=first,
        losses=tuple(step.loss for step in done),
        step_s=tuple(step.step_s for step in done),
        traffic_us=tuple(step.traffic_us for step in done if step.traffic_us is not None),
        peak_bytes=peak,
        kernels=metrics.generated_kernel_count,
        weights=tuple(weights),
        profiled=seen,
        reports=overlap_sched.reports(),
    )


def _asks_for_times(arguments: Arguments) -> bool:
    """Does anything in this run go by predicted times? Else to measure them only delays the first step."""
    return arguments.scheduler != "none" or arguments.predict or arguments.slow_network is not None


class _Step(NamedTuple):
    loss: float
    step_s: float
    traffic_us: tuple[float, float, float] | None


def _step(
    number: int,
    arguments: Arguments,
    trainer: Trainer,
    traffic: Traffic | None,
    show: Callable[[int, float, float], None],
) -> _Step:
    """One step, timed and shown; saved where that is due."""
    began = time.perf_counter()
    loss = trainer.step(number)
    synchronize(trainer.world.device)
    step_s = time.perf_counter() - began
    show(number + 1, loss, step_s)
    if arguments.checkpoint is not None and _due(number + 1, arguments):
        save(arguments.checkpoint, number + 1, identity(arguments, trainer), trainer.model, trainer.optimizer)
    return _Step(loss, step_s, None if traffic is None else traffic.taken())


def _due(done: int, arguments: Arguments) -> bool:
    every = arguments.checkpoint_every
    return done == arguments.steps or (every > 0 and done % every == 0)


@contextmanager
def _shown(first: int, steps: int, console: Console) -> Iterator[Callable[[int, float, float], None]]:
    """A bar on rank 0's terminal; some lines where there is none."""
    if console.is_terminal and not console.quiet:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("compiling", total=steps, completed=first)
            yield lambda done, loss, step_s: bar.update(
                task, completed=done, description=f"loss {loss:.4f}  {step_s * 1e3:.1f} ms"
            )
        return
    every = max(1, (steps - first) // _LINES)

    def line(done: int, loss: float, step_s: float) -> None:
        if done % every == 0 or done in (first + 1, steps):
            console.print(f"step {done}/{steps}  loss {loss:.4f}  {step_s * 1e3:.1f} ms")

    yield line


def _summary(outcome: Outcome, console: Console) -> None:
    if outcome.typical_step_s is not None and outcome.compile_s is not None:
        console.print(
            f"step {outcome.typical_step_s * 1e3:.1f} ms (median), the first {outcome.compile_s:.1f} s more (compiling)"
        )
    if outcome.network is not None:
        link, exposed, blocked = (f"{us / 1e3:.1f} ms" for us in outcome.network)
        console.print(f"link busy {link} a step, {exposed} of it exposed; waits {blocked} (median, rank 0)")
    if outcome.peak_bytes is not None:
        console.print(f"peak memory {outcome.peak_bytes / 2**20:.1f} MiB (rank 0, tensors)")
    for report in outcome.reports:
        console.print(f"graph {report.line}", markup=False)
    if outcome.profiled is not None:
        console.print(f"exposed {outcome.profiled.exposed_us / 1e3:.3f} ms in a profiled step (rank 0)")
        for graph in outcome.profiled.graphs:
            console.print(
                f"  {graph.kind}: {graph.collectives} collectives, {graph.matmuls_in_between} matmuls between launches "
                f"and waits, memory grew by {graph.growth_bytes / 2**20:.2f} MiB"
            )


def _quieten() -> None:
    """Leave out one remark of torch: what is recomputed has no in-place operations, as it asks for."""
    logging.getLogger("torch._higher_order_ops.wrap").addFilter(lambda record: "context_fn" not in record.getMessage())
