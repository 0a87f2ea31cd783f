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
    nodes: list[Node] = []
    storages: list[Storage] = []

    def new(size: int, pinned: bool = False) -> int:
        storages.append(Storage(size, pinned))
        return len(storages) - 1

    def add(node: Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    weights = []
    for k in range(layers):
        s = new(1, pinned=True)
        weights.append((add(Node(f"w{k}", Kind.INPUT, alloc=(s,))), s))
    held = new(SIZE, pinned=True)
    v = add(Node("tokens", Kind.INPUT, alloc=(held,)))
    kept = []
    for k, (weight, shard) in enumerate(weights):
        full, product, total, normal = new(8), new(SIZE), new(SIZE), new(SIZE)
        launch = add(Node(f"gather{k}", Kind.COLLECTIVE, (weight,), (full,), (shard,), gather_us, "gather", "fsdp"))
        ready = add(Node(f"full{k}", Kind.WAIT, (launch,), (), (shard, full), collective=launch))
        mm = add(Node(f"mm{k}", Kind.COMPUTE, (ready, v), (product,), (full, held), compute_us, "mm"))
        add_up = add(Node(f"sum{k}", Kind.COLLECTIVE, (mm,), (total,), (product,), tp_us, "all_reduce", "tp"))
        done = add(Node(f"done{k}", Kind.WAIT, (add_up,), (), (product, total), collective=add_up))
        v = add(Node(f"norm{k}", Kind.COMPUTE, (done,), (normal,), (total,), compute_us / 10, "norm"))
        held = normal
        kept.append((mm, product))
    deps = (*(mm for mm, _ in kept), v)
    uses = (*(product for _, product in kept), held)
    nodes.append(Node("output", Kind.OUTPUT, deps, (), uses))
    groups = {"fsdp": Group(8, intra_node=False), "tp": Group(8, intra_node=True)}
    return Problem(f"forward{layers}", tuple(nodes), tuple(storages), groups)


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
    nodes: list[Node] = [Node("g", Kind.INPUT, alloc=(0,))]
    storages = [Storage(4)]
    kept: list[int] = []

    def new(size: int, pinned: bool = False) -> int:
        storages.append(Storage(size, pinned))
        return len(storages) - 1

    def add(
        name: str, kind: Kind, deps: list[int], alloc: list[int], use: list[int], us: float = 0.0, **more: object
    ) -> int:
        nodes.append(Node(name, kind, tuple(deps), tuple(alloc), tuple(use), us, **more))  # type: ignore[arg-type]
        return len(nodes) - 1

    weights = [(add(f"w{k}", Kind.INPUT, [], [s := new(1, True)], []), s) for k in range(count)]
    acts = [(add(f"x{k}", Kind.INPUT, [], [s := new(4)], []), s) for k in range(count)]
    grad, gs = 0, 0
    grads = []
    for k, ((w, ws), (x, xs)) in enumerate(zip(weights, acts, strict=True)):
        full, dx, dw, ds = new(8), new(4), new(8), new(1)
        launch = add(f"gather{k}", Kind.COLLECTIVE, [w], [full], [ws], 30.0, op="all_gather_into_tensor", group="fsdp")
        ready = add(f"full{k}", Kind.WAIT, [launch], [], [ws, full], collective=launch)
        dgrad = add(f"dgrad{k}", Kind.COMPUTE, [ready, grad], [dx], [full, gs], 40.0)
        wgrad = add(f"wgrad{k}", Kind.COMPUTE, [x, grad], [dw], [xs, gs], 40.0)
        scatter = add(
            f"scatter{k}", Kind.COLLECTIVE, [wgrad], [ds], [dw], 30.0, op="reduce_scatter_tensor", group="fsdp"
        )
        grads.append(add(f"grad{k}", Kind.WAIT, [scatter], [], [dw, ds], collective=scatter))
        kept.append(ds)
        grad, gs = dgrad, dx
    add("output", Kind.OUTPUT, [grad, *grads], [], [gs, *kept])
    return Problem(f"layers{count}", tuple(nodes), tuple(storages), {"fsdp": Group(8, True)})


def large_layers(count: int, times: int = 1) -> Problem:
    """The same with storages of some MiB (so many times): each has its own place in a segment."""
    problem = layers(count)
    storages = tuple(s._replace(bytes=s.bytes * times * 3 * 2**20 // 2) for s in problem.storages)
    return replace(problem, storages=storages)
