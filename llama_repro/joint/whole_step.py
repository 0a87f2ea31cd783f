"""A training step as one graph, fitted by :func:`overlap_sched.fx.fitting.fit_graph`, run on CPU ranks."""

import statistics
import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from llama_repro.joint.memory import measured_peak
from llama_repro.joint.rank import Row, batch_of, bytes_of, local
from llama_repro.training.arguments import Arguments
from llama_repro.training.calibrate import measured_model
from llama_repro.training.trainer import DTYPES, Trainer, make_trainer
from llama_repro.training.world import World
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.fx import lift
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.joint.graphs import copy_of
from overlap_sched.judge.validate import measure
from overlap_sched.options import size_bytes


def whole_step_rows(arguments: Arguments, world: World, limits: list[str]) -> list[Row]:
    """A row for the graph as it was traced, then one for each limit; every rank calls it."""
    trainer = make_trainer(arguments, world)
    model = measured_model(world, DTYPES[arguments.dtype])
    with safe_gathers():
        step = traced(trainer)
        problem = lift(step.gm, model=model).problem
        now = measure(problem, problem.original_order)
        peak, us = max(now.profile), now.timeline.step_us
        values, ran = step.ran(step.gm, arguments.steps)
        rows = [Row("traced", "as it was", peak, step.peak(step.gm), us, ran, True)]
        for limit in limits:
            gm = copy_of(step.gm)
            with warnings.catch_warnings():
                warnings.simplefilter("error", OverlapSchedWarning)
                found = fit_graph(gm, memory_limit_bytes=size_bytes(limit, peak), kinds=("recompute",), model=model)
            others, ran = step.ran(gm, arguments.steps)
            bitwise = all(map(torch.equal, values, others))
            what = f"{len(found.best.rewrites)} recomputed"
            rows.append(Row(limit, what, found.best.peak_bytes, step.peak(gm), found.best.step_us, ran, bitwise))
    return rows


@dataclass(frozen=True)
class Step:
    """A graph of shards and a batch, which gives the loss and the gradients of the shards."""

    gm: fx.GraphModule
    given: tuple[Tensor, ...]

    def ran(self, gm: fx.GraphModule, steps: int) -> tuple[list[Tensor], float]:
        """What it gives, and microseconds (median)."""
        times: list[float] = []
        values: list[Tensor] = []
        for _ in range(steps):
            began = time.perf_counter()
            values = list(gm(*self.given))
            times.append((time.perf_counter() - began) * 1e6)
        return values, statistics.median(times)

    def peak(self, gm: fx.GraphModule) -> int:
        """Measured."""
        return min(measured_peak(lambda: gm(*self.given), bytes_of(list(self.given))) for _ in range(2))


def traced(trainer: Trainer) -> Step:
    """Forward and backward, by ``make_fx``; collectives are nodes of the graph, as parameters are gathered in it."""
    names = [name for name, _ in trainer.model.named_parameters()]
    parameters = [p.detach() for p in trainer.model.parameters()]
    batch = (*batch_of(trainer, 0), *trainer.rotation)

    def step(*given: Tensor) -> list[Tensor]:
        shards = [p.detach().requires_grad_() for p in given[: len(names)]]
        loss = functional_call(trainer.model, dict(zip(names, shards, strict=True)), given[len(names) :])
        return [loss.detach(), *torch.autograd.grad(loss, shards)]

    given = (*map(local, parameters), *batch)
    return Step(make_fx(step, tracing_mode="fake")(*given), given)
