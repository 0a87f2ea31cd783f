"""What each rank runs: a training of ``scripts/train.py``, whose graphs are predicted and measured in rounds.

    torchrun --nproc-per-node 2 -m scripts.studies.fidelity.rank OUT.json [ARGUMENTS OF TRAIN.PY]

Two models are compiled, one in the order of torch, one in ours. Each round calibrates: collectives and what they and
compute cost each other by themselves, kernels in steps of torch's order. Then it times steps of both orders by turns.
Rank 0 writes ``OUT.json``: per round and order what was predicted and what was measured.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor_config

import overlap_sched
from llama_repro.training.arguments import Arguments, parse
from llama_repro.training.calibrate import model_of
from llama_repro.training.slow_network import kernels_at
from llama_repro.training.trainer import Trainer, make_trainer
from llama_repro.training.world import World, world_of
from overlap_sched.cost.measured.tabled import TableModel
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor import GraphReport
from overlap_sched.options import Options
from scripts.studies.fidelity.clock import (
    GraphClock,
    clocked,
    everyone,
    quietest,
    step_figures,
    typical_stretches,
)
from scripts.studies.fidelity.cores import own_core
from scripts.studies.fidelity.prediction import Predicted, predicted, repriced, stretched, total
from scripts.studies.fidelity.shapes import Shapes, wishes_for

ROUNDS, STEPS, CALIBRATING_STEPS = 3, 12, 6


def main() -> None:
    """Run it."""
    out, given = Path(sys.argv[1]), sys.argv[2:]
    arguments = parse(["--device", "cpu", *given])
    warnings.simplefilter("ignore", OverlapSchedWarning)  # of sizes a little beyond the tables
    torch.set_num_threads(1)
    bound = own_core(int(os.environ.get("LOCAL_RANK", "0")))
    kernels = kernels_at(arguments.slow_network, arguments.slow_latency)
    with bound, world_of("cpu") as world, clocked(kernels) as clock, inductor_config.patch(fx_graph_cache=False):
        found = compared(arguments, world, clock)
    if world.rank == 0:
        out.write_text(json.dumps(found))


def compared(arguments: Arguments, world: World, clock: GraphClock) -> dict[str, Any]:
    """Rounds of predictions and measurements; all ranks call this."""
    shapes = Shapes()
    kept = Options(effort=0, agreement="none")
    original, reports = _compiled(arguments, world, kept, cost=shapes)
    problems = [plan.problem for one in reports if (plan := one.report.schedule) is not None]
    wishes = wishes_for(shapes.calls.values(), problems, world.size)
    model = model_of(world, wishes)
    ours, our_reports = _compiled(arguments, world, arguments.options, model=model)
    rounds = []
    losses: dict[str, list[float]] = {"original": [], "ours": []}
    for _ in range(ROUNDS):
        model = model_of(world, wishes)
        kernels_us = stretched(problems, model, _stretches(original, ours, clock))
        measured = _measured({"original": original, "ours": ours}, clock, losses)
        rounds.append(
            {
                name: {"predicted": _predicted(which, model, kernels_us)._asdict(), "measured": measured[name]}
                for name, which in (("original", reports), ("ours", our_reports))
            }
        )
    return {
        "rounds": rounds,
        "collectives": [one._asdict() for one in model.tables.collectives],
        "same_losses": losses["original"] == losses["ours"],
    }


def _compiled(
    arguments: Arguments, world: World, options: Options, **costs: Any
) -> tuple[Trainer, tuple[GraphReport, ...]]:
    """A trainer of its own after one step, and what the scheduler reports of its graphs.

    Each is compiled with an option of its own (which changes nothing): Dynamo would give it the code of the one before.
    """
    overlap_sched.clear_reports()
    trainer = make_trainer(arguments, world)
    own = {"trace.graph_diagram": bool(options.effort)}  # only read where torch writes traces
    trainer = replace(trainer, compiled=torch.compile(trainer.model, fullgraph=True, dynamic=False, options=own))
    with overlap_sched.enabled(options, **costs):
        trainer.step(0)
    return trainer, overlap_sched.reports()


def _stretches(original: Trainer, ours: Trainer, clock: GraphClock) -> list[float]:
    """Of steps in torch's order that are not measured; ours makes as many, so that the weights stay equal."""
    steps = []
    for _ in range(CALIBRATING_STEPS):
        ours.step(0)
        clock.taken()
        original.step(0)
        steps.append(clock.taken())
    return typical_stretches(steps[1:])


def _measured(
    trainers: dict[str, Trainer], clock: GraphClock, losses: dict[str, list[float]]
) -> dict[str, dict[str, float]]:
    """What the quietest steps of each trainer took, by turns; their losses are added to ``losses``."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in trainers}
    for step in range(1, STEPS + 2):
        for name, trainer in trainers.items():
            clock.taken()
            losses[name].append(trainer.step(step))
            seen[name].append(step_figures(everyone(clock.taken()), trainer.world.rank))
    return {name: quietest(ones[1:]) for name, ones in seen.items()}


def _predicted(
    reports: tuple[GraphReport, ...], model: TableModel, kernels_us: Sequence[Mapping[str, float]]
) -> Predicted:
    parts = []
    for one, times_us in zip(reports, kernels_us, strict=True):
        plan = one.report.schedule
        if plan is None:
            raise RuntimeError(f"{one.name} was not read: {one.report.reason}")
        order = plan.order if one.report.changed else plan.problem.original_order
        parts.append(predicted(*repriced(plan.problem, order, model, times_us)))
    return total(parts)


if __name__ == "__main__":
    main()
