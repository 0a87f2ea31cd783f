"""Schedulers that are wrong on purpose: the fuzzer must find each of them.

They stand in the place of ``overlap_sched.schedule_graph``, and know only what a graph's arguments say.

What each of two gloo ranks does, one program after the other:

``python -m tests.support.programs.rank FOLDER FIRST LAST INDUCTOR_SHARE LIMIT_S BROKEN``: the programs of the
seeds FIRST to LAST - 1. Rank 0 appends a line (JSON) to ``FOLDER/found.jsonl`` as a program begins and ends: where a
rank hangs or dies, the last line says in which program.
"""

import faulthandler
import json
import random
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

import overlap_sched
from overlap_sched import Options
from overlap_sched.fx import Report
from tests.support.programs.execution import World
from tests.support.programs.program import Program, describe, generate, shrunk
from tests.support.programs.trial import PLUGINS, Trial, ways_of


def _any_order(graph: fx.Graph, rng: random.Random) -> list[fx.Node]:
    """An order that keeps what flows from node to node, and nothing else."""
    placed: dict[fx.Node, None] = {node: None for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    left = [node for node in graph.nodes if node not in placed]
    while left:
        ready = [node for node in left if all(u in placed for u in node.all_input_nodes)]
        ready = [node for node in ready if node.op != "output" or len(left) == 1]
        node = rng.choice(ready)
        placed[node] = None
        left.remove(node)
    return list(placed)


def without_hazards(gm: fx.GraphModule, options: Options, **arguments: Any) -> Report:
    """Keeps nothing but data dependencies; the same on both ranks."""
    *order, output = _any_order(gm.graph, random.Random(len(gm.graph.nodes)))
    for node in order:
        output.prepend(node)
    return Report("broken", changed=True)


def without_agreement(gm: fx.GraphModule, options: Options, **arguments: Any) -> Report:
    """Another order on the second rank: two launches that stand one behind the other change places there."""
    nodes = list(gm.graph.nodes)
    for first, second in pairwise(nodes):
        both = [str(node.target) for node in (first, second)]
        launches = all("_c10d_functional." in text and "wait" not in text for text in both)
        if dist.get_rank() == 1 and launches and first not in second.all_input_nodes and both[0] != both[1]:
            second.append(first)
            return Report("broken", changed=True)
    return Report("broken", reason="nothing to break")


BROKEN = {function.__name__: function for function in (without_hazards, without_agreement)}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx


SHRUNK = 1
"""So many faults of each way are shrunk."""


def main(folder: Path, first: int, last: int, inductor_share: float, limit_s: float, broken: str) -> None:
    """See the module."""
    _settings()
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    rank, world = dist.get_rank(), World.of_two()
    if broken:
        overlap_sched.schedule_graph = BROKEN[broken]
    faults: Counter[str] = Counter()
    for seed in range(first, last):
        program = generate(seed)
        families = sorted(program.families)
        plan = ways_of(program, inductor_share)
        _write(folder, rank, {"seed": seed, "ways": plan})
        slow = 6 if set(plan) & {"inductor", "post_grad"} else 1
        faulthandler.dump_traceback_later(limit_s * slow, exit=True)
        found = []
        trial = Trial(program, world, rank)
        for way in plan:
            found.append(asdict(trial.outcome(way)))
            if found[-1]["status"] == "fault":
                faults[way] += 1
                if faults[way] <= SHRUNK:
                    faulthandler.dump_traceback_later(limit_s * 10, exit=True)

                    def fails(smaller: Program, way: str = way) -> bool:
                        return Trial(smaller, world, rank).outcome(way).status == "fault"

                    program = shrunk(program, fails, 10 if way in PLUGINS[1:] else 40)
                found[-1]["program"] = describe(program)
        _write(folder, rank, {"seed": seed, "ways": plan, "families": families, "outcomes": found})
    faulthandler.cancel_dump_traceback_later()
    dist.barrier(group=world.control)


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
    folder_, first_, last_, share_, limit_, broken_ = sys.argv[1:]
    main(Path(folder_), int(first_), int(last_), float(share_), float(limit_), broken_)
