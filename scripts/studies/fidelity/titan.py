"""``python -m scripts.studies.fidelity titan``: torchtitan's debug Llama on CPU ranks, predicted and measured in rounds.

    torchrun --nproc-per-node 2 -m scripts.studies.fidelity.titan OUT.json [--slow-network GB/S] [ARGUMENTS OF TORCHTITAN]

Each round trains with the graph in its own order and in ours, and calibrates; the graph that runs is a whole step, and
both times the one that our pipeline leaves (torchtitan's own has other collectives: it puts some together). The first
steps in its own order calibrate kernels, the others are measured. Rank 0 writes ``OUT.json``, as
:mod:`scripts.studies.fidelity.rank` does.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx

import overlap_sched
from llama_repro.training.calibrate import model_of
from llama_repro.training.link import LATENCY_US
from llama_repro.training.slow_network import kernels_at
from llama_repro.training.world import World
from overlap_sched.cost.measured.tabled import TableModel
from overlap_sched.distributed.calibration.kernels import KernelCall, calls_in
from overlap_sched.fx import lift
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from scripts.studies.fidelity.clock import (
    GraphClock,
    Taken,
    clocked,
    everyone,
    quietest,
    step_figures,
    typical_stretches,
)
from scripts.studies.fidelity.cores import own_core
from scripts.studies.fidelity.prediction import predicted, repriced, stretched
from scripts.studies.fidelity.shapes import wishes_for
from tests.support.titan.cpu import on_cpu
from tests.support.titan.jobs import LLAMA, OURS

ROUNDS = 3
FIRST, CALIBRATING = 2, 7
_SIZE = ("--training.steps", "18", "--training.local_batch_size", "8", "--training.seq_len", "256")


def main() -> None:
    """Run it."""
    out, (own, given) = Path(sys.argv[1]), _parser().parse_known_args(sys.argv[2:])
    warnings.simplefilter("ignore")
    on_cpu()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    arguments = [*LLAMA, *_SIZE, *given, *OURS, "--dump_folder", str(out.parent / "dump")]
    jobs = {"original": Options(effort=0, agreement="none"), "ours": Options()}
    calls: dict[tuple[str, str], KernelCall] = {}
    orders: dict[str, tuple[Problem, Order]] = {}
    rounds = []
    with own_core(rank), clocked(kernels_at(own.slow_network, own.slow_latency)) as clock:
        for number in range(ROUNDS):
            trained: dict[str, Trained] = {}
            for name, options in jobs.items():
                _join(out, f"{number}-{name}", rank, size)
                with overlap_sched.enabled(options):
                    trained[name] = done = _trained(arguments, clock, calls)
                if done.problem is not None and done.order is not None:
                    orders = {
                        "original": (done.problem, done.problem.original_order),
                        "ours": (done.problem, done.order),
                    }
                _leave()
            _join(out, f"{number}-calibrate", rank, size)
            model = _calibrated(calls, orders["ours"][0], World(rank, size, torch.device("cpu"), "gloo"))
            _leave()
            (kernels_us,) = stretched([orders["original"][0]], model, trained["original"].stretches_us)
            rounds.append({name: _row(*orders[name], model, kernels_us, trained[name].measured) for name in jobs})
    if rank == 0:
        out.write_text(json.dumps({"rounds": rounds}))


def _parser() -> argparse.ArgumentParser:
    """Our own arguments; all others are torchtitan's."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--slow-network", type=float)
    parser.add_argument("--slow-latency", type=float, default=LATENCY_US)
    return parser


def _join(out: Path, what: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", f"file://{out}.{what}.store", rank=rank, world_size=size)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _calibrated(calls: dict[tuple[str, str], KernelCall], problem: Problem, world: World) -> TableModel:
    return model_of(world, wishes_for(calls.values(), [problem], world.size))


def _row(
    problem: Problem, order: Order, model: TableModel, kernels_us: Mapping[str, float], measured: dict[str, float]
) -> dict[str, Any]:
    return {"predicted": predicted(*repriced(problem, order, model, kernels_us))._asdict(), "measured": measured}


class Trained(NamedTuple):
    """A training.

    Attributes:
        measured: Of the quietest steps. stretches_us: of those that calibrate.
        problem, order: Where our pass has run.
    """

    measured: dict[str, float]
    stretches_us: list[float]
    problem: Problem | None
    order: Order | None


def _trained(arguments: list[str], clock: GraphClock, calls: dict[tuple[str, str], KernelCall]) -> Trained:
    import torchtitan.experiments.graph_trainer.trainer as graph_trainer
    import torchtitan.train

    overlap_sched.clear_reports()
    torch._dynamo.reset()
    steps: list[list[Taken]] = []
    graphs: list[fx.GraphModule] = []
    run_traced = graph_trainer.run_traced

    def timed(traced: Any, **how: Any) -> Any:
        graphs[:] = [traced.gm]
        run = clock.inside(run_traced(traced, **how))

        def step(*inputs: Any) -> Any:
            clock.taken()
            result = run(*inputs)
            steps.append(everyone(clock.taken()))
            return result

        return step

    with (
        mock.patch.object(sys, "argv", ["train", *arguments]),
        mock.patch.object(graph_trainer, "run_traced", timed),
        mock.patch("torchtitan.trainer.time.sleep"),
    ):
        torchtitan.train.main()
    for call in calls_in(lift(graphs[0])):
        calls.setdefault((call.op, call.shapes), call)
    plans = [one.report.schedule for one in overlap_sched.reports() if one.report.schedule is not None]
    found = (plans[0].problem, plans[0].order) if plans else (None, None)
    rank = int(os.environ["RANK"])  # torchtitan has left its process group
    stretches_us = typical_stretches([step[rank] for step in steps[FIRST:CALIBRATING]])
    return Trained(quietest([step_figures(step, rank) for step in steps[CALIBRATING:]]), stretches_us, *found)


if __name__ == "__main__":
    main()
