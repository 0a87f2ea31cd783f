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
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

import overlap_sched
from llama_repro.training.calibrate import measured_model
from llama_repro.training.slow_network import over_link, slow_network
from llama_repro.training.world import World
from overlap_sched.cost.table import TableModel
from overlap_sched.fx import lift
from overlap_sched.options import Options
from tests.support.titan.cpu import on_cpu
from tests.support.titan.jobs import LLAMA, OURS
from tests.support.titan.train import run_titan

ROUNDS, FIRST = 3, 2
"""The first steps of each training are not timed."""
_SIZE = ("--training.steps", "10", "--training.local_batch_size", "4", "--training.seq_len", "256")
_NO_BUCKETS = ("--compile.disable_passes", "cudagraph_pass,joint_transformer_block_bucketing_reordering_pass")
_THEIRS, _OWN, _ROOMY = "its buckets, our order", "no buckets, our order", "our buckets, in as much memory"
JOBS: dict[str, tuple[tuple[str, ...], Options | None]] = {
    "torchtitan, no buckets": (_NO_BUCKETS, None),
    "torchtitan, its buckets": ((), None),
    _THEIRS: (OURS, Options(rewrites=())),
    _OWN: ((*_NO_BUCKETS, *OURS), Options(rewrites=())),
    _ROOMY: ((*_NO_BUCKETS, *OURS), Options(rewrites=("bucket",))),
}
"""How a step is trained: torchtitan's arguments, and our options (``None``: by torchtitan alone)."""


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
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in JOBS}
    for number, (name, (arguments, options)) in product(range(ROUNDS), JOBS.items()):
        _join(out, f"{number}-{name}", rank, size)
        if name == _ROOMY and options is not None:  # as much as torchtitan's buckets take before they are ordered
            theirs, own = (found[other][0]["own_peak_bytes"] for other in (_THEIRS, _OWN))
            options = replace(options, headroom=max(theirs - own, 0))
        every = [*LLAMA, *_SIZE, *arguments, *given, "--dump_folder", str(out.parent / "dump")]
        found[name].append(_train(every, options, model))
    if rank == 0:
        out.write_text(json.dumps({name: _figures(rounds) for name, rounds in found.items()}))


def _join(out: Path, what: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", f"file://{out}.{what}.store", rank=rank, world_size=size)


def _train(arguments: list[str], options: Options | None, model: TableModel) -> dict[str, Any]:
    """One training: microseconds of each timed step and of its waits for the link, and what is the same in each."""
    overlap_sched.clear_reports()
    steps: list[tuple[float, float]] = []
    graphs: list[fx.GraphModule] = []
    ours = nullcontext() if options is None else overlap_sched.enabled(options, model=model)
    with slow_network(model) as traffic, ours:

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
    peaks = (
        {"own_peak_bytes": plans[-1].original.peak_bytes, "peak_bytes": plans[-1].scheduled.peak_bytes} if plans else {}
    )
    return {"steps": steps[FIRST:], "collectives": len(lift(graphs[0]).problem.collectives), "losses": losses, **peaks}


def _figures(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all rounds of a job: medians of all their steps."""
    steps, exposed = zip(*(step for one in rounds for step in one.pop("steps")), strict=True)
    low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
    times = {"step_us": middle, "spread_us": high - low, "exposed_us": statistics.median(exposed)}
    return {**times, **rounds[0], "losses": [one["losses"] for one in rounds]}


if __name__ == "__main__":
    main()
