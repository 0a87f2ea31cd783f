"""What each rank runs for ``scripts/titan.sh --slow-network``: torchtitan's debug Llama, timed.

    python -m tests.support.titan.slow OUT.json GB/S [ARGUMENTS OF TORCHTITAN]

Whole steps (forward, loss and backward: one graph) of every job of :data:`JOBS` by turns: each round trains all of them
once more from their beginning. Rank 0 writes ``OUT.json``: per job the median step and what of it waited for the link,
what was predicted, and the losses of all steps, every bit of them.
"""

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import fx

import overlap_sched
from llama_repro.training.calibrate import measured_model
from llama_repro.training.slow_network import Traffic, over_link, slow_network
from llama_repro.training.world import World
from overlap_sched.cost.table import TableModel
from overlap_sched.fx import lift
from overlap_sched.options import Options
from overlap_sched.scheduler.driver import Schedule
from tests.support.titan.cpu import on_cpu
from tests.support.titan.jobs import LLAMA, OURS
from tests.support.titan.train import run_titan

ROUNDS, FIRST = 3, 2
"""The first steps of each training are not timed."""
_SIZE = ("--training.steps", "10", "--training.local_batch_size", "4", "--training.seq_len", "256")
_NO_BUCKETS = ("--compile.disable_passes", "cudagraph_pass,joint_transformer_block_bucketing_reordering_pass")
_WITH_ITS_BUCKETS, _WITHOUT_BUCKETS = "its buckets, our order", "no buckets, our order"


class Job(NamedTuple):
    """How a step is trained.

    Attributes:
        name: For people, and for other jobs.
        arguments: torchtitan's.
        options: ``None``: by torchtitan alone.
        room_of: Takes as much memory as that job did before it was ordered; ``""``: keeps to its own peak.
    """

    name: str
    arguments: tuple[str, ...] = ()
    options: Options | None = None
    room_of: str = ""


_ORDER, _BUCKETS = Options(rewrites=()), Options(rewrites=("bucket",))
JOBS = (
    Job("torchtitan, no buckets", _NO_BUCKETS),
    Job("torchtitan, its buckets"),
    Job(_WITH_ITS_BUCKETS, OURS, _ORDER),
    Job("its buckets, ours on top", OURS, _BUCKETS),
    Job(_WITHOUT_BUCKETS, (*_NO_BUCKETS, *OURS), _ORDER),
    Job("our buckets in place of its", (*_NO_BUCKETS, *OURS), _BUCKETS),
    Job("the same, in as much memory", (*_NO_BUCKETS, *OURS), _BUCKETS, _WITH_ITS_BUCKETS),
)


def main() -> None:
    """Run it."""
    out, bytes_per_s, given = Path(sys.argv[1]), float(sys.argv[2]) * 1e9, sys.argv[3:]
    warnings.simplefilter("ignore")
    on_cpu()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _join(out, "calibrate", rank, size)
    model = over_link(measured_model(World(rank, size, torch.device("cpu"), "gloo"), torch.float32), bytes_per_s)
    dist.destroy_process_group()
    trained: dict[str, list[Trained]] = {job.name: [] for job in JOBS}
    for number in range(ROUNDS):
        for k, job in enumerate(JOBS):
            _join(out, f"{number}-{k}", rank, size)
            arguments = [*LLAMA, *_SIZE, *job.arguments, *given, "--dump_folder", str(out.parent / "dump")]
            trained[job.name].append(_trained(arguments, _options(job, trained), model))
    if rank == 0:
        out.write_text(json.dumps({name: _figures(rounds) for name, rounds in trained.items()}))


def _join(out: Path, what: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", f"file://{out}.{what}.store", rank=rank, world_size=size)


class Trained(NamedTuple):
    """One training: per timed step how long its graph and the waits for the link in it took.

    Attributes:
        steps_us, exposed_us: Of each.
        collectives: That a step launches.
        losses: Of all steps.
        plan: What was predicted; ``None``: nothing was asked.
    """

    steps_us: list[float]
    exposed_us: list[float]
    collectives: int
    losses: list[list[str]]
    plan: Schedule | None


def _options(job: Job, trained: dict[str, list[Trained]]) -> Options | None:
    if job.options is None or not job.room_of:
        return job.options
    theirs, own = (trained[name][0].plan for name in (job.room_of, _WITHOUT_BUCKETS))
    assert theirs is not None
    assert own is not None
    return replace(job.options, headroom=max(theirs.original.peak_bytes - own.original.peak_bytes, 0))


def _figures(rounds: list[Trained]) -> dict[str, Any]:
    """Of all rounds of a job: medians of all their steps."""
    steps, exposed = ([one for each in rounds for one in getattr(each, name)] for name in ("steps_us", "exposed_us"))
    low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
    plan = rounds[0].plan
    return {
        "step_us": middle,
        "spread_us": high - low,
        "exposed_us": statistics.median(exposed),
        "collectives": rounds[0].collectives,
        "peak_bytes": None if plan is None else plan.scheduled.peak_bytes,
        "own_peak_bytes": None if plan is None else plan.original.peak_bytes,
        "losses": [one.losses for one in rounds],
    }


def _trained(arguments: list[str], options: Options | None, model: TableModel) -> Trained:
    overlap_sched.clear_reports()
    with slow_network(model) as traffic:
        if options is None:
            return _run(arguments, traffic)
        with overlap_sched.enabled(options, model=model):
            return _run(arguments, traffic)


def _run(arguments: list[str], traffic: Traffic) -> Trained:
    steps: list[tuple[float, float]] = []
    graphs: list[fx.GraphModule] = []

    def timed(run_traced: Callable[..., Any], traced: Any, **how: Any) -> Any:
        graphs[:] = [traced.gm]
        run = run_traced(traced, **how)

        def step(*inputs: Any) -> Any:
            dist.barrier()
            traffic.taken()
            began = time.perf_counter()
            result = run(*inputs)
            steps.append(((time.perf_counter() - began) * 1e6, traffic.taken()[1]))
            return result

        return step

    losses = run_titan(arguments, timed)
    plans = [one.report.schedule for one in overlap_sched.reports() if one.report.schedule is not None]
    steps_us, exposed_us = zip(*steps[FIRST:], strict=True)
    collectives = len(lift(graphs[0]).problem.collectives)
    return Trained(list(steps_us), list(exposed_us), collectives, losses, plans[-1] if plans else None)


if __name__ == "__main__":
    main()
