"""A small sharded backward pass, whose best orders are known by hand."""

import csv
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from llama_repro.generate.chains import Chains
from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.runs import first_run, more_runs, of_chains
from overlap_sched.scheduler.task import NO_WORK, Candidate, Reference, Stages, Task
from tests.support.graphs import Maker

# Small forward passes with tensor parallelism, to be listed side by side, and all ways to list them.


SIZE = 4

LISTINGS: dict[str, Callable[[Chains], Problem]] = {
    "one by one": Chains.one_by_one,
    "lock-step": Chains.lock_step,
    "stage by stage": Chains.stage_by_stage,
    "merged": lambda chains: chains.merged(1),
    "shuffled": lambda chains: chains.shuffled(1),
}


def forward(layers: int, compute_us: float = 50.0, tp_us: float = 20.0, gather_us: float = 10.0) -> Problem:
    """A chain: each layer gathers its weight, multiplies, adds up over the tensor-parallel ranks, and normalises.

    Every product is saved for the backward pass. No time is hidden by any order: each layer needs the one before it.
    """
    make = Maker()
    weights = [make.given(f"w{k}", 1, pinned=True) for k in range(layers)]
    value, saved = make.given("tokens", SIZE, pinned=True), []
    for k, weight in enumerate(weights):
        full = make.launched(f"gather{k}", weight, 8, gather_us, "gather", "fsdp", f"full{k}")
        saved.append(make.compute(f"mm{k}", compute_us, SIZE, full, value, op="mm"))
        total = make.launched(f"sum{k}", saved[-1], SIZE, tp_us, "all_reduce", "tp", f"done{k}")
        value = make.compute(f"norm{k}", compute_us / 10, SIZE, total, op="norm")
    groups = {"fsdp": Group(8, intra_node=False), "tp": Group(8, intra_node=True)}
    return make.problem(f"forward{layers}", [*saved, value], groups)


# The graph of a rank that differs, but launches alike: as where rows do not divide by the ranks.


def unlike(problem: Problem, random: Random, every: int, larger: Sequence[float], pad_us: float) -> Problem:
    """A problem with a node more in front of some collectives, which copies what is sent, and other sizes.

    Args:
        problem: That of another rank.
        random: Draws which.
        every: One collective in so many has such a node.
        larger: Each storage is larger by one of these parts.
        pad_us: Time of such a node.
    """
    nodes, new = list[Node](), dict[int, int]()
    storages = [Storage(int(s.bytes * (1 + random.choice(larger))), s.pinned) for s in problem.storages]
    for v, node in enumerate(problem.nodes):
        collective = None if node.collective is None else new[node.collective]
        moved = node._replace(deps=tuple(new[u] for u in node.deps), collective=collective)
        if node.kind is Kind.COLLECTIVE and node.use and random.randrange(every) == 0:
            sent, *rest = node.use
            storages.append(Storage(storages[sent].bytes, False))
            pad = Node(f"pad_{v}", Kind.COMPUTE, op="pad", time_us=pad_us, alloc=(len(storages) - 1,), use=(sent,))
            nodes.append(pad)
            moved = moved._replace(use=(len(storages) - 1, *rest))
        new[v] = len(nodes)
        nodes.append(moved)
    return replace(problem, nodes=tuple(nodes), storages=tuple(storages))


# MiniMalloc's hard problems of placement (google/minimalloc, ``benchmarks/challenging``).


LETTERS = "ABCDEFGHIJK"
CAPACITY = 2**20
"""Bytes: all of the problems are known to fit into it."""


def hard_problem(folder: Path, letter: str) -> Problem:
    """A chain with a node per time at which something begins or ends; what is live between two is live at the first."""
    with (folder / f"{letter}.{CAPACITY}.csv").open(newline="", encoding="utf-8") as file:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    times = sorted({row[key] for row in rows for key in ("lower", "upper")})
    nodes = [
        Node(
            f"t{time}",
            Kind.COMPUTE,
            deps=(at - 1,) if at else (),
            alloc=tuple(s for s, row in enumerate(rows) if row["lower"] == time),
            use=tuple(s for s, row in enumerate(rows) if row["upper"] == until and row["lower"] < time),
        )
        for at, (time, until) in enumerate(itertools.pairwise(times))
    ]
    return Problem(letter, tuple(nodes), tuple(Storage(row["size"], False) for row in rows))


# Stages of the scheduler, put together otherwise than its driver does.


def with_stage(name: str, run: Callable[..., Any], stages: Stages = ALL) -> Stages:
    """All stages, with something else done in the place of one; ``run`` is given what the stage would be, and it."""
    assert name in stages.names

    def changed(stage: Any) -> Any:
        real = stage.run
        return replace(stage, run=lambda *given: run(real, *given)) if stage.name == name else stage

    return stages.each(changed)


def best_of_runs(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """What all runs make of an order, not polished."""
    best = replace(best, work=NO_WORK)
    for run in (first_run, of_chains, more_runs):
        best = run(task, reference, best)
    return best


def layers(count: int) -> Problem:
    """A backward pass of `count` layers, sharded: gather a weight, two matmuls, scatter the gradient."""
    make = Maker()
    grad, scattered = make.given("g", 4), []
    weights = [make.given(f"w{k}", 1, pinned=True) for k in range(count)]
    acts = [make.given(f"x{k}", 4) for k in range(count)]
    for k in range(count):
        full = make.launched(f"gather{k}", weights[k], 8, 30.0, "all_gather_into_tensor", "fsdp", f"full{k}")
        passed = make.compute(f"dgrad{k}", 40.0, 4, full, grad)
        own = make.compute(f"wgrad{k}", 40.0, 8, acts[k], grad)
        scattered.append(make.launched(f"scatter{k}", own, 1, 30.0, "reduce_scatter_tensor", "fsdp", f"grad{k}"))
        grad = passed
    return make.problem(f"layers{count}", [grad, *scattered], {"fsdp": Group(8, True)})


def large_layers(count: int, times: int = 1) -> Problem:
    """The same with storages of some MiB (so many times): each has its own place in a segment."""
    problem = layers(count)
    storages = tuple(s._replace(bytes=s.bytes * times * 3 * 2**20 // 2) for s in problem.storages)
    return replace(problem, storages=storages)
