"""What one GPU can say of what the documents promise: step and memory of a graph in its own order and in ours.

    scripts/gpu_day.sh                              on a GPU: 4 layers of llama3-8b
    scripts/gpu_day.sh --device cpu --out dry.json  the logic without a GPU, on the tiny model: nothing is timed

Capture a backward graph, lift it; on a GPU profile every node and lift again with these times; run both orders; compare
with what was predicted. Collectives are emulated: a copy and a wait of the length that the cost model says, on a stream
per process group. Exit status: 0, also where there is no GPU; 1 where bytes are not those predicted; 2 for wrong usage.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import fx

from llama_repro.capture.configs import CONFIGS, LlamaConfig, find_config
from llama_repro.capture.trace import captured
from llama_repro.gpu.measure import counted_run, elapsed_us, gpu_runs, memory_run, node_times_us
from llama_repro.gpu.program import Program, random_inputs, same_bits
from llama_repro.gpu.streams import CudaStreams, EmulatedStreams, calibrated, has_streams
from llama_repro.harness.console import guarded, verdict, wide_console
from llama_repro.harness.record import provenance, write_record
from overlap_sched.fx import lift
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import Order
from overlap_sched.report.files import check_writable
from overlap_sched.report.terminal import captioned_table, progress
from overlap_sched.report.units import change, duration, size
from overlap_sched.scheduler.driver import schedule


@dataclass(frozen=True)
class Row:
    """One order, predicted and measured; times in microseconds, ``None`` where nothing was measured.

    Attributes:
        name: ``"original"`` or ``"ours"``.
        predicted_step_us, predicted_exposed_us, predicted_peak_bytes: Replay and liveness of the problem.
        live_bytes: Peak counted while the order ran: must be the predicted one to the byte.
        same_results: Whether its results are bitwise those of the original order.
        allocated_bytes, reserved_bytes, replayed_bytes: The allocator's, see :class:`llama_repro.gpu.measure.Run`.
        step_us: Median. step_range_us: shortest and longest.
    """

    name: str
    predicted_step_us: float
    predicted_exposed_us: float
    predicted_peak_bytes: int
    live_bytes: int
    same_results: bool
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    replayed_bytes: int | None = None
    step_us: float | None = None
    step_range_us: tuple[float, float] | None = None

    @property
    def broken(self) -> str | None:
        """What is wrong, if anything is: on a GPU atomic additions may change results in their last bits."""
        if self.step_us is None and not self.same_results:
            return f"{self.name}: its results are not those of the original order"
        if self.live_bytes != self.predicted_peak_bytes:
            return f"{self.name}: {self.live_bytes} bytes were live, {self.predicted_peak_bytes} predicted"
        return None


def measure_orders(
    config: LlamaConfig,
    device: torch.device,
    *,
    repeat: int = 7,
    headroom: int | str = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Run the backward graph of a configuration in its original order and in ours.

    Args:
        config: What to capture.
        device: A GPU, or the CPU (streams emulated, nothing timed).
        repeat: Timed runs of each order.
        headroom: Of ours.
        tell: Called with what is being done.

    Raises:
        RuntimeError: A process group is initialized already.
    """
    tell(f"capturing {config.name}, {config.layers} layers")
    with captured(config) as graphs:
        graph = graphs.backward
        lifted = lift(graph, name=f"{config.name}_bwd")
    placeholders = [node for node in lifted.nodes if node.op == "placeholder"]

    def inputs() -> list[Any]:
        return random_inputs(placeholders, device, config.vocabulary)

    cycles = calibrated() if has_streams(device) else None
    copy_us: dict[fx.Node, float] = {}
    if cycles is not None:  # measured twice: for the length of the copies alone, which spinning then makes up for
        tell("measuring single nodes")
        problem, nodes, program = lifted.problem, lifted.nodes, Program(lifted, lifted.problem.original_order)
        alone = node_times_us(program, inputs, repeat, lambda log: CudaStreams(device, cycles, None, log))
        copy_us = {nodes[v]: alone[nodes[v]] for v in problem.collectives}
        times = node_times_us(program, inputs, repeat, lambda log: CudaStreams(device, cycles, copy_us, log))
        timed = {nodes[v] for v, node in enumerate(problem.nodes) if node.time_us > 0.0}  # views cost nothing
        cost = {node: us for node, us in times.items() if node in timed}.get
        lifted = lift(graph, name=problem.name, groups=problem.groups, cost=cost)
    problem, reference, rows = lifted.problem, None, list[Row]()

    def run(name: str, order: Order) -> Row:
        nonlocal reference
        program, timeline, steps = Program(lifted, order), replay(problem, order), list[float]()
        if cycles is None:
            found = counted_run(program, inputs, EmulatedStreams())
        else:
            found = memory_run(program, inputs, CudaStreams(device, cycles, copy_us))
            runs = gpu_runs(program, inputs, repeat, lambda: CudaStreams(device, cycles, copy_us))
            steps = [elapsed_us(start, end) for start, end in runs]
        reference = found.result if reference is None else reference
        return Row(
            name,
            timeline.step_us,
            timeline.exposed_us,
            peak_memory(problem, order)[0],
            found.live_bytes,
            same_bits(found.result, reference),
            found.allocated_bytes,
            found.reserved_bytes,
            found.replayed_bytes,
            statistics.median(steps) if steps else None,
            (min(steps), max(steps)) if steps else None,
        )

    for name in ("original", "ours"):
        tell(f"running {name}")
        ours = name == "ours"
        rows.append(run(name, schedule(problem, Options(headroom=headroom)).order if ours else problem.original_order))
    return rows


def table_of(rows: Sequence[Row], title: str, device: str) -> Table:
    """One line per order; ``off``: measured against predicted."""
    measured = rows[0].step_us is not None
    caption = (
        f"{device}. Steps are medians; predicted: replay with node times measured in this run; collectives are\n"
        "as long as the cost model says. Counted: bytes behind values alive. Allocated: the allocator's peak, with\n"
        "workspaces and rounding. Attention's backward adds in no fixed order: results may differ in their last bits."
        if measured
        else f"{device}. Streams are emulated and nothing is timed: steps are predicted for an H100.\n"
        "Counted: bytes behind the values alive while the order ran; must be the predicted peak to the byte."
    )
    heads = ["step, predicted", "peak, predicted", "counted", "same results"]
    heads += ["step", "off", "allocated", "off", "reserved", "replayed"] if measured else []
    table = captioned_table(title, caption, heads, first="order")
    for row in rows:
        cells = [duration(row.predicted_step_us), size(row.predicted_peak_bytes), size(row.live_bytes)]
        cells.append("yes" if row.same_results else "no")
        if row.step_us is not None and row.allocated_bytes is not None:
            cells += [duration(row.step_us), change(row.predicted_step_us, row.step_us)]
            cells += [size(row.allocated_bytes), change(row.predicted_peak_bytes, row.allocated_bytes)]
            cells += [size(row.reserved_bytes or 0), size(row.replayed_bytes or 0)]
        table.add_row(row.name, *cells, style=None if row.broken is None else "red")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing measured (--device cpu runs the logic without one)")
        return 0
    return guarded("gpu_day", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    check_writable(options.out)
    cuda = options.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    config = find_config(options.config or ("llama3-8b" if cuda else "tiny"))
    config = replace(config, layers=options.layers or (4 if cuda else config.layers))
    with progress() as tell:
        rows = measure_orders(config, device, repeat=options.repeat, headroom=options.headroom, tell=tell)
    hardware = torch.cuda.get_device_name(device) if cuda else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    title = f"{config.name}, {config.layers} layers, backward graph of one of {config.world} ranks"
    console = wide_console()
    console.print(table_of(rows, title, f"{hardware}, torch {torch.__version__}"))
    about = {
        **provenance(" ".join(["scripts/gpu_day.sh", *sys.argv[1:]])),
        "hardware": hardware,
        "cuda": torch.version.cuda,
        "repeat": options.repeat,
        "headroom": options.headroom,
        "config": asdict(config),
    }
    write_record(options.out, {**about, "rows": [asdict(row) for row in rows]})
    return verdict(console, (), [row.broken for row in rows if row.broken is not None])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpu_day.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", choices=CONFIGS, help="which graph (default: llama3-8b; tiny on the CPU)")
    parser.add_argument("--layers", type=int, help="of the model (default: 4; all on the CPU)")
    parser.add_argument("--headroom", default="0", help="of ours, above the original peak (default: 0)")
    parser.add_argument("--repeat", type=int, default=7, help="timed runs of each order (default: 7)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu_day.json"), help="the record (default: gpu_day.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
