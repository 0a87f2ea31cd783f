"""One configuration, several orders, each run for real and compared with what was predicted.

Capture, lift; on a GPU profile every node and lift again with these times; make the orders; run each; compare.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.trace import captured
from llama_repro.errors import TorchPassError
from llama_repro.gpu.measure import Inputs, Run, counted_run, elapsed_us, gpu_runs, memory_run, node_times_us
from llama_repro.gpu.program import Program
from llama_repro.gpu.streams import CudaStreams, EmulatedStreams, calibrated, has_streams
from llama_repro.gpu.values import random_inputs, same_bits
from llama_repro.harness.torch_pass import torch_order
from overlap_sched.fx import Cost, Lifted, lift
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options
from overlap_sched.problem import MemoryModel, Order
from overlap_sched.scheduler.driver import schedule

ORDERS = ("original", "ours", "torch")
"""What can be run. ``torch``: torch's own overlap pass with its default caps (it may take more memory)."""


@dataclass(frozen=True)
class Row:
    """One order, predicted and measured; times in microseconds, ``None`` where nothing was measured.

    Attributes:
        name: One of :data:`ORDERS`.
        predicted_step_us, predicted_exposed_us, predicted_peak_bytes: Replay and liveness of the problem.
        live_bytes: Peak counted while the order ran: must be the predicted one to the byte.
        allocated_bytes, requested_bytes, reserved_bytes: The allocator's, see :class:`llama_repro.gpu.measure.Run`.
        step_us: Median. step_range_us: shortest and longest.
        same_results: Whether its results are bitwise those of the original order.
    """

    name: str
    predicted_step_us: float
    predicted_exposed_us: float
    predicted_peak_bytes: int
    live_bytes: int
    same_results: bool
    allocated_bytes: int | None = None
    requested_bytes: int | None = None
    reserved_bytes: int | None = None
    step_us: float | None = None
    step_range_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class Checked:
    """What came of one configuration.

    Attributes:
        config: What was captured.
        nodes, collectives: How many the graph has.
        rows: One per order, the original first.
        remarks: What could not be run, and why.
        cycles_per_us: Of the spinning kernel; ``None`` on the CPU.
    """

    config: LlamaConfig
    nodes: int
    collectives: int
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    cycles_per_us: float | None


def check(
    config: LlamaConfig,
    orders: Sequence[str],
    device: torch.device,
    *,
    repeat: int = 7,
    headroom: int | str = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Checked:
    """Capture the backward graph of a configuration and run it in several orders.

    Args:
        config: What to capture.
        orders: Some of :data:`ORDERS`; the original one is always run, first.
        device: A GPU, or the CPU (streams emulated, nothing timed).
        repeat: Timed runs of each order.
        headroom: Of ours.
        progress: Called with what is being done.

    Raises:
        RuntimeError: A process group is initialized already.
    """
    progress(f"capturing {config.name}, {config.layers} layers")
    with captured(config) as graphs:
        graph = graphs.backward
        lifted = lift(graph, name=f"{config.name}_bwd")
    bench = _Bench(graph, lifted, config.vocabulary, device, repeat)
    progress("measuring single nodes")
    lifted = bench.profiled()
    chosen, remarks = _orders(graph, lifted, orders, bench.cost, headroom, progress)
    rows: list[Row] = []
    reference: Any = None
    for name, order in chosen.items():
        progress(f"running {name}")
        row, result = bench.row(name, order, reference)
        reference = result if reference is None else reference
        rows.append(row)
    problem = lifted.problem
    return Checked(
        config, len(problem.nodes), len(problem.collectives), tuple(rows), tuple(remarks), bench.cycles_per_us
    )


class _Bench:
    """The device, calibrated, with one graph on it."""

    def __init__(self, graph: fx.GraphModule, lifted: Lifted, tokens: int, device: torch.device, repeat: int) -> None:
        placeholders = [node for node in lifted.nodes if node.op == "placeholder"]
        self.inputs: Inputs = lambda: random_inputs(placeholders, device, tokens)
        self.repeat = repeat
        self.cost: Cost | None = None
        self.cycles_per_us = calibrated() if has_streams(device) else None
        self._graph, self._lifted, self._device = graph, lifted, device
        self._copy_us: dict[fx.Node, float] = {}

    def profiled(self) -> Lifted:
        """The problem with the times of this device: measured twice, for the length of the copies first.

        A collective takes as long as the cost model says; its spinning makes up what its copy does not take.
        """
        device, cycles = self._device, self.cycles_per_us
        if cycles is None:
            return self._lifted
        problem, nodes = self._lifted.problem, self._lifted.nodes
        program = Program(self._lifted, problem.original_order)
        alone = node_times_us(program, self.inputs, self.repeat, lambda log: CudaStreams(device, cycles, None, log))
        copy_us = self._copy_us = {nodes[v]: alone[nodes[v]] for v in problem.collectives}
        times = node_times_us(program, self.inputs, self.repeat, lambda log: CudaStreams(device, cycles, copy_us, log))
        timed = {nodes[v] for v, node in enumerate(problem.nodes) if node.time_us > 0.0}  # views cost nothing
        self.cost = {node: us for node, us in times.items() if node in timed}.get
        self._lifted = lift(self._graph, name=problem.name, groups=problem.groups, cost=self.cost)
        return self._lifted

    def row(self, name: str, order: Order, reference: Any) -> tuple[Row, Any]:
        """One order run and judged; and what it returned."""
        problem = self._lifted.problem
        program, timeline = Program(self._lifted, order), replay(problem, order)
        run, times = self._run(program)
        row = Row(
            name,
            timeline.step_us,
            timeline.exposed_us,
            peak_memory(problem, order)[0],
            run.live_bytes,
            reference is None or same_bits(run.result, reference),
            run.allocated_bytes,
            run.requested_bytes,
            run.reserved_bytes,
            statistics.median(times) if times else None,
            (min(times), max(times)) if times else None,
        )
        return row, run.result

    def _run(self, program: Program) -> tuple[Run, list[float]]:
        device, cycles = self._device, self.cycles_per_us
        if cycles is None:
            return counted_run(program, self.inputs, EmulatedStreams()), []
        run = memory_run(program, self.inputs, CudaStreams(device, cycles, self._copy_us))
        steps = gpu_runs(program, self.inputs, self.repeat, lambda: CudaStreams(device, cycles, self._copy_us))
        return run, [elapsed_us(start, end) for start, end in steps]


def _orders(
    graph: fx.GraphModule,
    lifted: Lifted,
    names: Sequence[str],
    cost: Cost | None,
    headroom: int | str,
    progress: Callable[[str], None],
) -> tuple[dict[str, Order], list[str]]:
    """The orders asked for, made with the times of this device; and why one is missing."""
    problem, remarks = lifted.problem, []
    orders = {"original": problem.original_order}
    if "ours" in names:
        progress("scheduling")
        orders["ours"] = schedule(problem, Options(headroom=headroom)).order
    if "torch" in names:
        progress("torch's own pass")
        model: MemoryModel = "tracker"
        same = lift(graph, memory_model=model, name=problem.name, groups=problem.groups, cost=cost)
        try:
            order, _, remark = torch_order(same.problem)
            remarks += [f"torch: {remark}"] if remark else []
            broken = violation(problem, order)
            if broken is None:
                orders["torch"] = order
            else:
                remarks.append(f"torch: its order is not valid: {broken}")
        except TorchPassError as error:
            remarks.append(f"torch: {error}")
    return orders, remarks
