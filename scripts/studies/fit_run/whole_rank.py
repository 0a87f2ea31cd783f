"""One rank of ``scripts.studies.fit_run --whole``: whole-step graphs, fitted to several limits, on real ranks."""

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

from llama_repro.training.arguments import Arguments
from llama_repro.training.calibrate import measured_model
from llama_repro.training.slow_network import NoLink, Traffic, slow_network, with_slow_links
from llama_repro.training.trainer import DTYPES, make_trainer
from llama_repro.training.world import World
from overlap_sched.cost.table import TableModel
from overlap_sched.errors import OptionsError
from overlap_sched.fx import lift, schedule_graph
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.judge.validate import measure
from overlap_sched.problem.sizes import size_bytes
from scripts.studies.fit_run.memory import measured_peak
from scripts.studies.fit_run.rank import SETTLE_S, Row, bytes_of
from scripts.studies.fit_run.whole import Step, whole_step

Change = Callable[[fx.GraphModule], str]
"""Rewrites a graph; says what was done."""


def whole_rows(arguments: Arguments, world: World, limits: list[str], kinds: Collection[str]) -> list[Row]:
    """A row for the graph as it is, one for its best order, then one for each limit; every rank calls it.

    Raises:
        OptionsError: A limit is not one, or the ranks have planned differently.
    """
    model = measured_model(world, DTYPES[arguments.dtype])
    if arguments.slow_network is not None:
        model = with_slow_links(model, arguments.slow_network * 1e9, arguments.slow_latency)
    with slow_network(NoLink() if arguments.slow_network is None else model) as traffic, torch.no_grad():
        with torch.enable_grad():
            step = whole_step(make_trainer(arguments, world))
        peak = _predicted(step.gm, model)[0]
        changes: dict[str, Change] = {"as it is": lambda gm: "", "none": partial(_ordered, model=model)}
        for limit in limits:
            nbytes = size_bytes(limit, peak)
            if nbytes is None:
                raise OptionsError(f"--limits has {limit!r}; write a size, or percent: 80%.")
            changes[limit] = partial(_fitted, model=model, limit_bytes=nbytes, kinds=kinds)
        first: list[Tensor] = []
        return [_row(step, limit, change, model, traffic, arguments.steps, first) for limit, change in changes.items()]


def _row(
    step: Step, limit: str, change: Change, model: TableModel, traffic: Traffic, steps: int, first: list[Tensor]
) -> Row:
    gm, inputs = step.fresh()
    what = change(gm)
    _check_alike(gm)
    peak, step_us = _predicted(gm, model)
    values, times = [], []
    for _ in range(steps):
        began = time.perf_counter()
        (loss,) = gm(*inputs)
        times.append((time.perf_counter() - began) * 1e6)
        values.append(loss)
    values += [x.clone() for x in inputs if isinstance(x, Tensor)]
    traffic.settle_s = SETTLE_S
    held = bytes_of([x for x in inputs if isinstance(x, Tensor)])
    measured = min(measured_peak(lambda: gm(*inputs), held) for _ in range(2))
    traffic.settle_s = 0.0
    first[:] = first or values
    bitwise = all(map(torch.equal, first, values))
    return Row(limit, what, peak, measured, step_us, statistics.median(times[1:]), bitwise)


def _predicted(gm: fx.GraphModule, model: TableModel) -> tuple[int, float]:
    """Bytes and microseconds of a graph in its order."""
    problem = lift(gm, model=model).problem
    found = measure(problem, problem.original_order)
    return max(found.profile), found.timeline.step_us


def _ordered(gm: fx.GraphModule, model: TableModel) -> str:
    schedule_graph(gm, model=model)
    return "best order found"


def _fitted(gm: fx.GraphModule, model: TableModel, limit_bytes: int, kinds: Collection[str]) -> str:
    found = fit_graph(gm, memory_limit=limit_bytes, kinds=kinds, model=model)
    if not found.fits:
        return "nothing fits"
    return ", ".join(f"{n} {kind}" for kind, n in Counter(_kind(one) for one in found.best.rewrites).items()) or "order"


def _kind(rewrite: Any) -> str:
    parts = getattr(rewrite, "parts", 0)
    return type(rewrite).__name__.lower() + (f" in {parts} parts" if parts else "")


def _check_alike(gm: fx.GraphModule) -> None:
    """All ranks run the same graph, or hang."""
    mine = hashlib.sha256(gm.code.encode()).hexdigest()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    if len(set(every)) > 1:
        raise OptionsError(f"the ranks have planned differently: {every}.")
