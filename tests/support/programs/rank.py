"""What each of two gloo ranks does, one program after the other:

``python -m tests.support.programs.rank FOLDER FIRST LAST INDUCTOR_SHARE LIMIT_S WITHOUT BROKEN``: the programs of the
seeds FIRST to LAST - 1. Rank 0 appends a line (JSON) to ``FOLDER/found.jsonl`` as a program begins and ends: where a
rank hangs or dies, the last line says in which program.
"""

import faulthandler
import json
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx

import overlap_sched
from tests.support.programs.broken import BROKEN
from tests.support.programs.execution import World
from tests.support.programs.generate import generate
from tests.support.programs.program import Program, shown
from tests.support.programs.rules import returned
from tests.support.programs.shrink import shrunk
from tests.support.programs.trial import PLUGINS, Outcome, Trial, ways_of

SHRUNK = 1
"""So many faults of each way are shrunk."""


def main(folder: Path, first: int, last: int, inductor_share: float, limit_s: float, without: str, broken: str) -> None:
    """See the module."""
    _settings()
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    rank, world = dist.get_rank(), World.of_two()
    if broken:
        overlap_sched.schedule_graph = BROKEN[broken]
    faults: Counter[str] = Counter()
    for seed in range(first, last):
        program = generate(seed, without.split(","))
        plan = ways_of(program, inductor_share)
        _write(folder, rank, {"begins": seed, "ways": plan})
        slow = 6 if set(plan) & {"inductor", "post_grad"} else 1
        faulthandler.dump_traceback_later(limit_s * slow, exit=True)
        found = []
        trial = Trial(program, world, rank)
        for way in plan:
            outcome = trial.outcome(way)
            found.append(asdict(outcome))
            if outcome.status == "fault":
                faults[way] += 1
                least = program
                if faults[way] <= SHRUNK:
                    faulthandler.dump_traceback_later(limit_s * 10, exit=True)
                    least = _least(program, world, rank, outcome)
                found[-1]["program"] = shown(least, returned)
        _write(
            folder,
            rank,
            {"seed": seed, "families": sorted(program.families), "outcomes": found, "cpu_s": time.process_time()},
        )
    faulthandler.cancel_dump_traceback_later()
    dist.barrier(group=world.control)


def _least(program: Program, world: World, rank: int, outcome: Outcome) -> Program:
    def fails(smaller: Program) -> bool:
        return Trial(smaller, world, rank).outcome(outcome.way).status == "fault"

    return shrunk(program, fails, 10 if outcome.way in PLUGINS[1:] else 40)


def _settings() -> None:
    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._inductor.config.fx_graph_cache = False
    torch._inductor.config.compile_threads = 1


def _write(folder: Path, rank: int, line: dict[str, Any]) -> None:
    if rank == 0:
        with (folder / "found.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
        float(sys.argv[5]),
        sys.argv[6],
        sys.argv[7],
    )
