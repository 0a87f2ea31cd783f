"""Whole steps of FSDP that gathers its weights again for the backward, of 2 to 16 layers; as problems, by fixed seeds.

Even seeds are those by which anything is chosen, odd ones are held out. ``tests/data/fsdp.json`` has the optimum of
each small one with its headroom (the A* of tests/support/exact_search.py), and step and peak of torch's orders (2.13,
both caps) of the others.
"""

import json
import random
from pathlib import Path
from typing import NamedTuple

from overlap_sched import Group, Problem
from tests.support.graphs import Maker, Value

MIB = 2**20
SEEDS = range(288)
SMALL_SEEDS = range(144)
_DATA = json.loads((Path(__file__).parents[1] / "data" / "fsdp.json").read_text())
OPTIMAL_US: list[float] = _DATA["optimal_us"]
TORCH: list[list[tuple[float, int]]] = _DATA["torch"]


class Step(NamedTuple):
    """Sizes in MiB, times in microseconds, per layer.

    Attributes:
        weights, gradients, acts: Bytes of a gathered weight, of its gradient before it is scattered, of an activation.
        gathers, scatters, forward, weight_grads, input_grads: Times.
        streams: Gathers and scatters on one stream, or each on their own.
        input_first: The input's gradient is computed before the weight's.
        headroom: MiB above the original peak.
    """

    weights: list[int]
    gradients: list[int]
    acts: list[int]
    gathers: list[float]
    scatters: list[float]
    forward: list[float]
    weight_grads: list[float]
    input_grads: list[float]
    streams: int = 1
    input_first: bool = False
    headroom: int = 0


def fsdp_step(seed: int, fewest: int = 3, most: int = 16) -> tuple[Problem, int]:
    """One graph, and how many bytes of headroom it is given."""
    draw = random.Random(seed * 1_000 + fewest * 100 + most)
    layers = draw.choice([n for n in (2, 3, 4, 5, 6, 8, 10, 12, 16) if fewest <= n <= most])
    uneven = draw.random() < 0.3

    def each(*values: float) -> list:
        value = draw.choice(values)
        return [draw.choice(values) if uneven else value for _ in range(layers)]

    weights = each(4, 8, 16)
    doubled = draw.choice((1, 2))
    gathers = each(20.0, 30.0, 50.0, 80.0, 100.0, 150.0)
    step = Step(
        weights=weights,
        gradients=[doubled * size for size in weights],
        acts=each(1, 2, 8),
        gathers=gathers,
        scatters=[draw.choice((1.0, 2.0)) * us for us in gathers] if uneven else each(30.0, 60.0, 100.0, 200.0),
        forward=each(50.0, 80.0),
        weight_grads=each(50.0, 80.0),
        input_grads=each(50.0, 80.0),
        streams=draw.choice((1, 1, 2)),
        input_first=draw.random() < 0.3,
        headroom=draw.choice((0, 0, 1, 4, 5, 8, 16)),
    )
    return made(f"fsdp_{seed}_{layers}", step), step.headroom * MIB


def small_step(seed: int) -> tuple[Problem, int]:
    """The same of 2 to 4 layers."""
    return fsdp_step(seed, 2, 4)


def made(name: str, step: Step) -> Problem:
    """The graph: layer by layer forward, then backward."""
    make = Maker()
    scatter_group = "gathers" if step.streams == 1 else "scatters"

    def launched(title: str, source: Value, size: int, us: float, group: str, op: str) -> Value:
        larger = max(size * MIB, make.storages[source[1]].bytes)
        return make.launched(title, source, size * MIB, us, op, group, f"{title}.w", larger)

    def compute(title: str, us: float, size: int, *used: Value) -> Value:
        return make.compute(title, us, size * MIB, *used, op="aten.mm.default", flops=10**6)

    layers = range(len(step.weights))
    acts = [make.given("x", step.acts[0] * MIB)]
    shards = [make.given(f"s{k}", max(step.weights[k] // 8, 1) * MIB, pinned=True) for k in layers]

    def gathered(k: int, phase: str) -> Value:
        op = "all_gather_into_tensor"
        return launched(f"{phase}g{k}", shards[k], step.weights[k], step.gathers[k], "gathers", op)

    for k in layers:
        acts.append(compute(f"fw{k}", step.forward[k], step.acts[k], gathered(k, "a"), acts[k]))
    grad, kept = acts[-1], []
    for k in reversed(layers):
        weight, before = gathered(k, "b"), grad
        if step.input_first:
            grad = compute(f"dx{k}", step.input_grads[k], step.acts[k], weight, before)
        full = compute(f"dw{k}", step.weight_grads[k], step.gradients[k], acts[k], before)
        shard = max(step.gradients[k] // 8, 1)
        kept.append(launched(f"rs{k}", full, shard, step.scatters[k], scatter_group, "reduce_scatter_tensor"))
        if not step.input_first:
            grad = compute(f"dx{k}", step.input_grads[k], step.acts[k], weight, before)
    return make.problem(name, [grad, *kept], {g: Group(8, True) for g in ("gathers", scatter_group)})
