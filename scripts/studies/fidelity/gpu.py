"""One Llama layer on one GPU, forward and backward in bf16: predicted by kernels that were timed alone, and run.

The graphs are those of a job of many ranks; their collectives are emulated, a copy and a wait of the length that the
cost model says (:mod:`llama_repro.gpu.streams`). So what is compared is compute, overlap and memory, not the network.
Without a GPU its logic runs on the CPU, where nothing is timed.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.trace import captured
from llama_repro.gpu.measure import Inputs, counted_run, elapsed_us, gpu_runs, memory_run, node_times_us
from llama_repro.gpu.program import Program
from llama_repro.gpu.streams import CudaStreams, EmulatedStreams, calibrated, has_streams
from llama_repro.gpu.values import random_inputs
from llama_repro.training.calibrate import kernels_model
from overlap_sched.distributed.calibration.kernels import GPU_GRID, Grid, KernelCall, calls_in, calls_in_grid
from overlap_sched.fx import Lifted, lift
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import Order
from overlap_sched.report.units import duration, size
from overlap_sched.scheduler.pipeline import schedule
from scripts.studies.fidelity.prediction import predicted, repriced

PEAK_AIM = 0.02
_REPEATS = 9


class LayerRow(NamedTuple):
    """A graph in an order; ``None``: not measured, for want of a GPU.

    Attributes:
        graph: ``"forward"`` or ``"backward"``. order: ``"original"`` or ``"ours"``.
        predicted_us, step_us: The step, predicted and measured (median).
        predicted_bytes, allocated_bytes: The peak of live bytes, and of what the allocator handed out.
    """

    graph: str
    order: str
    predicted_us: float
    step_us: float | None
    predicted_bytes: int
    allocated_bytes: int | None


def layer_rows(
    config: LlamaConfig, device: torch.device, tell: Callable[[str], object]
) -> tuple[list[LayerRow], list[str]]:
    """Both graphs of a model of one layer, in both orders; and kernels that could not be timed.

    Raises:
        RuntimeError: A process group is initialized already.
    """
    tell(f"capturing a layer of {config.name}")
    with captured(replace(config, layers=1)) as graphs:
        both = {"forward": lift(graphs.forward), "backward": lift(graphs.backward)}
    calls: dict[tuple[str, str], KernelCall] = {}
    for lifted in both.values():
        calls |= {(call.op, call.shapes): call for call in calls_in(lifted)}
    copies = calls_in_grid(Grid((), (), GPU_GRID.copies if device.type == "cuda" else (4096,)), torch.float32, device)
    tell("timing kernels")
    model, failed = kernels_model(device, [*calls.values(), *copies])
    rows = []
    for name, lifted in both.items():
        timed = replace(lifted, problem=repriced(lifted.problem, lifted.problem.original_order, model)[0])
        orders = {"original": timed.problem.original_order, "ours": schedule(timed.problem, Options()).order}
        for order_name, order in orders.items():
            tell(f"running {name}, {order_name}")
            rows.append(_row(name, order_name, timed, order, config.vocabulary, device))
    return rows, failed


def layer_lines(rows: list[LayerRow]) -> list[str]:
    """A line per graph and order."""
    return [
        f"{row.graph}, {row.order}: step {_shown(row.step_us, duration)}, predicted {duration(row.predicted_us)}; "
        f"peak {_shown(row.allocated_bytes, size)}, predicted {size(row.predicted_bytes)}"
        for row in rows
    ]


def misses(rows: list[LayerRow], step_aim: float) -> list[str]:
    """What was measured and is further off than it should be."""
    found = []
    for row in rows:
        if row.step_us is None or row.allocated_bytes is None:
            continue
        step, peak = row.predicted_us / row.step_us - 1, row.predicted_bytes / row.allocated_bytes - 1
        for what, error, aim in (("step", step, step_aim), ("allocator's peak", peak, PEAK_AIM)):
            if abs(error) > aim:
                found.append(f"{row.graph}, {row.order}: {what} is predicted {100 * error:+.1f} % off; aim {aim:.0%}")
    return found


def _shown(measured: Any, unit: Callable[[Any], str]) -> str:
    return "not measured" if measured is None else unit(measured)


def _row(graph: str, name: str, lifted: Lifted, order: Order, tokens: int, device: torch.device) -> LayerRow:
    placeholders: list[fx.Node] = [node for node in lifted.nodes if node.op == "placeholder"]
    inputs: Inputs = partial(random_inputs, placeholders, device, tokens)
    program = Program(lifted, order)
    step_us, peak = predicted(lifted.problem, order).step_us, peak_memory(lifted.problem, order)[0]
    if not has_streams(device):
        counted_run(program, inputs, EmulatedStreams())
        return LayerRow(graph, name, step_us, None, peak, None)
    cycles = calibrated()
    alone = node_times_us(program, inputs, _REPEATS, lambda log: CudaStreams(device, cycles, None, log))
    copies = {lifted.nodes[v]: alone[lifted.nodes[v]] for v in lifted.problem.collectives}  # spinning makes up the rest
    run = memory_run(program, inputs, CudaStreams(device, cycles, copies))
    steps = gpu_runs(program, inputs, _REPEATS, lambda: CudaStreams(device, cycles, copies))
    took = statistics.median(elapsed_us(start, end) for start, end in steps)
    return LayerRow(graph, name, step_us, took, peak, run.allocated_bytes)
